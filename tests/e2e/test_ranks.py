"""Groups of ranks as real processes: tokens are those of one rank, and of transformers."""

import random
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from protocol.messages_gateway import SamplingParams
from testkit.checkpoints import WITH_WINDOWS
from testkit.reference import NUM_TOKENS, reference, reference_in_thirds
from tests.drafts import add_mtp, make_draft
from tests.e2e.baton_process import BatonProcess
from tests.parity.margins import margins
from tests.selecting import broad, first, full

pytestmark = pytest.mark.slow
STORY = Path("models/story")
PAIR, UNIFIED = "--prefill 1 --decode 1", "--prefill 0 --decode 0 --unified 1"
EXACT = "--port 0 --dtype float32 --max-total-tokens 2048 --pairing round_robin --enable-dp-attention"


@dataclass(frozen=True)
class Case:
    """Flags of `baton serve` beside EXACT, and the model: an architecture, or `thirds`."""

    arch: str
    flags: str

    def __str__(self) -> str:
        return re.sub(r"[ -]+", "-", f"{self.arch} {self.flags}")


CASES = (
    Case("llama", f"{PAIR} --decode-dp-size 2"),
    Case("qwen3", f"{UNIFIED} --dp-size 2 --disable-overlap-schedule --page-size 1"),
    Case("thirds", f"{UNIFIED} --dp-size 3"),
    Case("gemma3", f"{UNIFIED} --dp-size 2 --disable-overlap-schedule --chunked-prefill-size 32"),
)
MORE_CASES = (
    Case("llama", f"{PAIR} --prefill-dp-size 2 --disable-cpu-kernels"),
    Case("mistral_window", f"{PAIR} --decode-dp-size 2"),
    Case("qwen3", f"{UNIFIED} --dp-size 4 --chunked-prefill-size 32"),
    Case("llama", f"{PAIR} --dp-size 2 --disable-overlap-schedule --chunked-prefill-size 32"),
    Case("llama", f"{UNIFIED} --dp-size 2 --page-size 1 --disable-cpu-kernels"),
    Case("qwen3_window", f"{UNIFIED} --dp-size 2 --page-size 1"),
    Case("qwen3", f"{UNIFIED} --dp-size 2"),
    Case("llama", f"{UNIFIED} --dp-size 4"),
    Case("qwen3", f"{PAIR} --dp-size 2"),
    *(
        Case(arch, f"{topology} --dp-size 2 --chunked-prefill-size {chunk} --page-size {page}")
        for arch in (*WITH_WINDOWS, "gpt_oss")
        for topology, chunk, page in ((PAIR, 32, 16), (UNIFIED, 0, 1))
    ),
)


@pytest.mark.parametrize("case", [*first(2, CASES), *map(full, MORE_CASES)], ids=str)
def test_greedy_tokens_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    """Prompts of several lengths at once, so ranks have work of different sizes, and none."""
    expected = reference_in_thirds() if case.arch == "thirds" else reference(case.arch)
    argv = ["serve", "--model", str(expected.folder), *EXACT.split(), *case.flags.split()]
    with BatonProcess(*argv, log=tmp_path / "log") as baton, ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda p: baton.tokens(p, max_tokens=NUM_TOKENS, temperature=0), expected.prompts)
        for index, (got, continuation) in enumerate(zip(answers, expected.continuations, strict=True)):
            assert tuple(got) == continuation, f"prompt {index}"
        alone = baton.tokens(expected.prompts[-1], max_tokens=NUM_TOKENS, temperature=0)
        assert tuple(alone) == expected.continuations[-1], "with idle ranks"
        assert baton.wait_for_rest()
        assert sum(row["idle_launches"] for row in baton.workers()) > 0, "no rank was ever idle"


OWN_DRAFT = "--speculative-algorithm mtp --speculative-adaptive false"


@pytest.mark.parametrize(
    "flags",
    [full(f"{UNIFIED} --dp-size 2"), broad(f"{PAIR} --dp-size 2 --page-size 1"), full(f"{PAIR} --decode-dp-size 4")],
)
def test_tokens_of_a_glm_with_its_own_draft_layer(flags: str, tmp_path: Path) -> None:
    """The layer has experts, all of them on each rank. It is random, so proposals are hardly ever kept."""
    expected = reference("glm4_moe")
    folder = shutil.copytree(expected.folder, tmp_path / "model")
    add_mtp(folder, 1)
    argv = ["serve", "--model", str(folder), *EXACT.split(), *OWN_DRAFT.split(), *flags.split()]
    with BatonProcess(*argv, log=tmp_path / "log") as baton, ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda p: baton.tokens(p, max_tokens=NUM_TOKENS, temperature=0), expected.prompts)
        assert tuple(map(tuple, answers)) == expected.continuations
        assert baton.wait_for_rest()
        assert baton.metric("spec_proposed_tokens_total", position="2") > 0


NUM_DRAWN = 48
DRAFT = "--speculative-algorithm eagle --speculative-adaptive false"
WITH_MARGINS = (
    f"{UNIFIED} --dp-size 2",
    f"{PAIR} --decode-dp-size 2 --retract-to host --max-total-tokens 512",
    f"{UNIFIED} --dp-size 4 {DRAFT} --speculative-eagle-topk 2 --speculative-num-draft-tokens 8",
)
MORE_WITH_MARGINS = (
    f"{PAIR} --dp-size 2 {DRAFT}",
    f"{UNIFIED} --dp-size 2 --speculative-algorithm eagle",
    f"{UNIFIED} --dp-size 4 {DRAFT}",
    f"{UNIFIED} --dp-size 4 {DRAFT} --retract-to host --max-total-tokens 512",
    f"{PAIR} --decode-dp-size 4 {DRAFT}",
    f"{PAIR} --prefill-dp-size 4 {DRAFT}",
    f"{UNIFIED} --dp-size 2 {DRAFT}",
    f"{UNIFIED} --dp-size 2 {DRAFT} --speculative-eagle-topk 2 --speculative-num-draft-tokens 8",
    f"{UNIFIED} --dp-size 4 --retract-to host --max-total-tokens 512",
)


@cache
def transformers_model() -> torch.nn.Module:
    """The bundled model."""
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(STORY, dtype=torch.float32).eval()
    return model


@pytest.mark.parametrize("flags", [*first(1, WITH_MARGINS), *map(full, MORE_WITH_MARGINS)])
def test_tokens_with_a_safe_margin_are_those_of_transformers(flags: str, tmp_path: Path) -> None:
    """The bundled model: greedy and seeded requests at once, with drafts, and where requests are preempted."""
    tokenizer, rng = Tokenizer.from_file(str(STORY / "tokenizer.json")), random.Random(25)
    starts = ("Once upon a time there was", "The little dog saw", "In the garden", "Tom and his friend")
    prompts = [tokenizer.encode(start + " a" * rng.randint(0, 30)).ids for start in starts for _ in range(3)]
    asked = greedy_and_seeded(len(prompts))
    answers = answers_of(["--enable-dp-attention", *flags.split()], prompts, asked, tmp_path / "log")

    num_safe = 0
    for prompt, params, answer in zip(prompts, asked, answers, strict=True):
        assert len(answer) == params.max_tokens
        for margin, token in zip(margins(transformers_model(), prompt, answer, params), answer, strict=True):
            assert token == margin.token or not margin.is_safe
            num_safe += margin.is_safe
    assert num_safe > 0.9 * len(prompts) * NUM_DRAWN


@pytest.mark.full
@pytest.mark.parametrize(
    "flags",
    (
        f"{UNIFIED} --dp-size 3",
        f"{PAIR} --dp-size 3",
        f"{UNIFIED} --dp-size 3 --disable-overlap-schedule",
        f"{PAIR} --prefill-dp-size 3",
        f"{PAIR} --decode-dp-size 3",
    ),
)
def test_three_ranks_with_a_draft_draw_what_one_rank_draws_without(flags: str, tmp_path: Path) -> None:
    """A checkpoint of random weights; up to the first token that rounding may change."""
    target = reference_in_thirds()
    model = AutoModelForCausalLM.from_pretrained(target.folder, dtype=torch.float32).eval()
    prompts, asked = list(map(list, target.prompts)), greedy_and_seeded(len(target.prompts))
    draft = make_draft(tmp_path / "draft", target.folder, "eagle")
    group = f"--enable-dp-attention {flags} {DRAFT} --speculative-draft-model-path {draft}".split()
    of_model = ["--model", str(target.folder)]
    alone = answers_of([*of_model, *UNIFIED.split()], prompts, asked, tmp_path / "alone.log")
    answers = answers_of([*of_model, *group], prompts, asked, tmp_path / "group.log")

    num_compared = 0
    for prompt, params, one, three in zip(prompts, asked, alone, answers, strict=True):
        assert len(one) == len(three) == NUM_DRAWN
        is_safe = [margin.is_safe for margin in margins(model, prompt, one, params)]
        num_safe = is_safe.index(False) if False in is_safe else NUM_DRAWN
        assert three[:num_safe] == one[:num_safe]
        num_compared += num_safe
    assert num_compared > 0.8 * len(prompts) * NUM_DRAWN


def greedy_and_seeded(count: int) -> list[SamplingParams]:
    """In turn; each seed is another one."""
    greedy = SamplingParams(max_tokens=NUM_DRAWN, temperature=0.0)
    drawn = replace(greedy, temperature=0.9, top_k=40, top_p=0.9)
    return [replace(drawn, seed=index) if index % 2 else greedy for index in range(count)]


def answers_of(flags: list[str], prompts: list[list[int]], asked: list[SamplingParams], log: Path) -> list[list[int]]:
    """All at once, from a deployment of its own that is left at rest."""

    def ask(prompt: list[int], params: SamplingParams) -> list[int]:
        how = {name: getattr(params, name) for name in ("max_tokens", "temperature", "top_k", "top_p", "seed")}
        return baton.tokens(prompt, ignore_eos=True, **how)

    size = [] if "--max-total-tokens" in flags else ["--max-total-tokens", "8192"]
    argv = ["serve", "--port", "0", "--dtype", "float32", *size, *flags]
    with BatonProcess(*argv, log=log) as baton, ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(ask, prompts, asked))
        assert baton.wait_for_rest()
    return answers
