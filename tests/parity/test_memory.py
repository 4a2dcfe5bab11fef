"""Real models in float32: caches, growth, preemption and drafts change no token whose margin is larger than rounding.
Half of the requests have penalties, biases and bad words.

Requests of two families come in two waves, so the second wave finds what the first one has cached. The pools are so
small that requests are preempted and begin again, with other chunks than before.
"""

import random
from dataclasses import replace
from functools import cache
from itertools import chain, cycle
from pathlib import Path
from typing import cast

import pytest
import torch
from tokenizers import Tokenizer

from bench.gpu.step_parity import our_logits
from model.runner import DraftSource, ModelRunner
from protocol.logit_rules import LogitRules
from protocol.messages_gateway import SamplingParams
from testkit.checkpoints import MIN_ROUTER_MARGIN, OF_EXPERTS, WITH_WINDOWS, Architecture
from testkit.reference import VOCAB_SIZE, reference
from testkit.router_margins import router_margin
from tests.cluster import Cluster
from tests.parity.grid import PAIRWISE, Combination
from tests.parity.margins import LOGIT_BOUND, Margin, margins
from tests.parity.serving import model_of
from tests.selecting import first, full

pytestmark = pytest.mark.slow

NUM_TOKENS = 40
STORY = Path("models/story")
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
SAMPLED = replace(GREEDY, temperature=0.9, top_k=40, top_p=0.9)
RULES = LogitRules(0.4, 0.2, 1.1, logit_bias=((11, 2.0), (200, -5.0)), bad_words=((20,), (21, 22)))
SYSTEMS = (
    "You are a kind teacher. You answer every question in short and simple sentences, and you never make things up. ",
    "Once upon a time there was a small dog who lived near a river. Every morning he went out to find his friends. ",
)
QUESTIONS = ("What is a river?", "Tell me of the dog.", "Who is there?", "The sun was up, and the dog ran")


def folder_of(name: str) -> Path:
    return STORY if name == "story" else reference(cast("Architecture", name)).folder


@cache
def runner_of(name: str, draft: str = "") -> ModelRunner:
    source = DraftSource(draft, Path(f"models/{name}-{draft}")) if draft else None
    return ModelRunner.load(folder_of(name), device="cpu", dtype="float32", draft=source)


def prompts_of(name: str) -> list[list[int]]:
    """Two beginnings, each with four ends."""
    if name == "story":
        tokenizer = Tokenizer.from_file(str(STORY / "tokenizer.json"))
        return [tokenizer.encode(system + question).ids for system in SYSTEMS for question in QUESTIONS]
    rng = random.Random(15)
    systems = [rng.choices(range(VOCAB_SIZE), k=50) for _ in range(2)]
    return [system + rng.choices(range(VOCAB_SIZE), k=rng.randint(3, 30)) for system in systems for _ in range(4)]


def params_of(index: int) -> SamplingParams:
    """Greedy and sampled in turn; every second pair has logit rules."""
    params = GREEDY if index % 2 else replace(SAMPLED, seed=100 + index)
    return replace(params, rules=RULES) if index % 4 > 1 else params


def serve(cluster: Cluster, prompts: list[list[int]]) -> list[list[int]]:
    """The tokens of two waves: every prompt, then every prompt with three tokens more."""
    for wave in range(2):
        for index, prompt in enumerate(prompts):
            cluster.assign(f"{wave}-{index}", prompt + [7, 8, 9] * wave, params_of(index))
        cluster.run()
    cluster.check()
    cluster.close()
    assert not cluster.failures
    return [cluster.answers[f"{wave}-{index}", 0].ids for wave in range(2) for index in range(len(prompts))]


@cache
def undisturbed(name: str) -> tuple[list[list[int]], list[list[Margin]]]:
    """The tokens without cache and with memory to spare, and their margins."""
    prompts = prompts_of(name)
    answers = serve(Cluster(runner_of(name), "1U", page_size=16, num_pages=512, chunk_size=0), prompts)
    asked = [(prompt + [7, 8, 9] * wave, params_of(index)) for wave in range(2) for index, prompt in enumerate(prompts)]
    texts = [prompt + answer for (prompt, _), answer in zip(asked, answers, strict=True)]
    assert router_margin(model_of(folder_of(name)), texts) > MIN_ROUTER_MARGIN
    return answers, [
        margins(model_of(folder_of(name)), prompt, answer, params)
        for (prompt, params), answer in zip(asked, answers, strict=True)
    ]


@pytest.mark.parametrize("name", ["story", "qwen3", *first(1, (*WITH_WINDOWS, *OF_EXPERTS), num_broad=3)])
@torch.no_grad()
def test_rounding_moves_logits_by_less_than_the_bound(name: str) -> None:
    for prompt in prompts_of(name):
        theirs_TV = model_of(folder_of(name))(torch.tensor([prompt])).logits[0]
        assert float((our_logits(runner_of(name), prompt) - theirs_TV).abs().max()) < LOGIT_BOUND / 4


@pytest.mark.parametrize("name", ["story", "qwen3", *first(1, (*WITH_WINDOWS, *OF_EXPERTS), num_broad=3)])
def test_margins_tell_what_is_drawn(name: str) -> None:
    answers, of_answers = undisturbed(name)
    pairs = list(zip(chain(*answers), chain(*of_answers), strict=True))
    assert all(token == margin.token for token, margin in pairs if margin.is_safe)
    assert sum(margin.is_safe for _, margin in pairs) > 0.95 * len(pairs) == 0.95 * 16 * NUM_TOKENS


@pytest.mark.parametrize(
    ("topology", "page_size"),
    [
        *first(1, [("1P1D", 1), ("1U", 1), ("1P1D-mirrored", 16), ("2P2D", 16)]),
        *map(full, [("1P1D", 16), ("1U", 16), ("1P1D-mirrored", 1), ("2P2D", 1)]),
    ],
)
@pytest.mark.parametrize("name, draft", [("story", ""), ("qwen3", ""), ("story", "eagle"), ("story", "eagle3")])
def test_caches_preemption_and_drafts_change_no_token(name: str, draft: str, topology: str, page_size: int) -> None:
    check_that_nothing_changes(name, draft, topology, page_size)


def check_that_nothing_changes(
    name: str, draft: str, topology: str, page_size: int, *, chunk_size: int = 24, overlap: bool = True
) -> None:
    topology, _, kind = topology.partition("-")
    prompts = prompts_of(name)
    num_pages = 1 + 3 * (max(map(len, prompts)) + 3 + NUM_TOKENS) // page_size  # for two and a bit
    cluster = Cluster(
        runner_of(name, draft),
        topology,
        page_size=page_size,
        chunk_size=chunk_size,
        overlap=overlap,
        num_pages=num_pages,
        mirrored=kind == "mirrored",
        caches=True,
    )
    answers = serve(cluster, prompts)
    assert cluster.num_preempted > 0, "the pool is too large to show anything"
    assert sum(cluster.cached.values()) > 100, "nothing was cached"
    counters = [worker.planner.counters for worker in cluster.workers]
    num_kept = sum(each.get("spec_accepted_0", 0) for each in counters)
    assert not draft or num_kept > sum(each.get("spec_proposed_0", 0) for each in counters) / 3

    num_compared = 0
    for answer, expected, of_answer in zip(answers, *undisturbed(name), strict=True):
        for ours, theirs, margin in zip(answer, expected, of_answer, strict=True):
            assert ours == theirs or not margin.is_safe
            if ours != theirs:
                break
            num_compared += 1
    assert num_compared > 0.9 * 16 * NUM_TOKENS


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        *first(1, zip((*OF_EXPERTS, *WITH_WINDOWS), cycle(("1P1D", "1U")), strict=False)),
        *map(full, zip((*OF_EXPERTS, *WITH_WINDOWS), cycle(("1U", "1P1D")), strict=False)),
    ],
)
def test_caches_and_preemption_change_no_token_of_experts(name: str, topology: str) -> None:
    check_that_nothing_changes(name, "", topology, 16)


@pytest.mark.parametrize("combination", [full(each) for each in PAIRWISE if each.arch in OF_EXPERTS], ids=str)
def test_caches_and_preemption_in_every_combination(combination: Combination) -> None:
    """The pages, chunks, overlap and topology of the workers whose pools are small."""
    check_that_nothing_changes(
        combination.arch,
        "",
        combination.topology,
        combination.page_size,
        chunk_size=combination.chunk_size,
        overlap=combination.overlap,
    )
