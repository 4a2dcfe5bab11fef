"""Tokens on the device beside transformers on the CPU, float32: greedy and seeded, every family; bfloat16 logits.

    greedy     transformers generates the expected tokens
    seeded     Baton's sampler draws them on the CPU from transformers' logits
    bfloat16   logits of a prompt and of a decode after it. Their error against transformers in float32 may be twice
               that of transformers in bfloat16

A token that differs fails the step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Final

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from bench.gpu.decoders import new_streams
from bench.gpu.kernel_sides import relative_error
from bench.gpu.shape import maker_of_graphs, prompt_input
from bench.gpu.sheet import StepSheet
from bench.step.decoding import PAGE_SIZE, executor_on, planner_of
from model.graphs import GraphedRunner
from model.paged_kv import PagedKv
from model.runner import ModelRunner
from model.sampler import sample
from protocol.messages_gateway import Assign, SamplingParams, Tokens
from runtime.clock import MonotonicClock
from scheduler.execution.sampling_columns import SamplingColumns
from scheduler.plan import Draw
from testkit.checkpoints import DENSE, Architecture
from testkit.reference import NUM_TOKENS, PROMPT_LENS, Reference, reference
from unified.worker import UnifiedWorker
from worker.policies import Policies

GREEDY: Final = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
SEEDED: Final = SamplingParams(
    max_tokens=24, temperature=1.1, top_k=40, top_p=0.9, min_p=0.02, seed=1234, ignore_eos=True
)
NUM_KV_TOKENS: Final = 4096
MAX_REQUESTS, MAX_CONTEXT, CHUNK_SIZE = 16, 512, 32
BFLOAT16_RATIO: Final = 2.0
FAMILY_S: Final = 60.0
ABOUT: Final = "Requests whose tokens are those of transformers, of all: greedy ones, then seeded ones."
EVERY: Final = len(PROMPT_LENS)


@dataclass(frozen=True)
class Size:
    """What is compared: the first prompts greedily, the last ones seeded."""

    families: tuple[Architecture, ...]
    num_greedy: int
    num_seeded: int


SIZES: Final = {
    "cuda": Size(DENSE, EVERY, num_seeded=4),
    "cpu": Size(("qwen3",), 3, num_seeded=1),
}


@dataclass(frozen=True)
class Wanted:
    """Prompts with their parameters and expected tokens."""

    prompts: tuple[tuple[int, ...], ...]
    params: tuple[SamplingParams, ...]
    tokens: tuple[tuple[int, ...], ...]


def measure_parity(sheet: StepSheet, device: str) -> None:
    """Runs the step. On a CPU there is one family; `make test` has them all."""
    size = SIZES[device]
    if torch.backends.cuda.matmul.allow_tf32:
        sheet.fault("TF32 is on: float32 products would not be float32")
    sheet.note("float32 beside transformers on the CPU, chunks of 32 tokens, all requests together; TF32 is off")
    for arch in size.families:
        sheet.part(f"tokens of {arch}", FAMILY_S, partial(_family, sheet, arch, device, size))
    for arch in size.families:
        sheet.part(f"bfloat16 logits of {arch}", FAMILY_S / 4, partial(_logits, sheet, arch, device))


def _family(sheet: StepSheet, arch: Architecture, device: str, size: Size) -> None:
    wanted = wanted_of(reference(arch), size)
    for page_size in (1, 16):
        runner = ModelRunner.load(reference(arch).folder, device=device, dtype="float32", page_size=page_size)
        cells: dict[str, str | int] = {"family": arch, "page size": page_size}
        for overlap, graphs in product((True, False), (True, False)):
            how = f"{'overlap' if overlap else 'serial'}, {'graphs' if graphs else 'no graphs'}"
            wrong = differences(runner, wanted, page_size, overlap=overlap, graphs=graphs)
            cells[how] = f"{len(wanted.tokens) - len(wrong)} of {len(wanted.tokens)}"
            for fault in wrong[:2]:
                sheet.fault(f"{arch}, page size {page_size}, {how}: {fault}")
        sheet.row("Tokens", cells, ABOUT)


def wanted_of(known: Reference, size: Size) -> Wanted:
    """The greedy ones, then the seeded ones."""
    greedy, seeded = known.prompts[: size.num_greedy], known.prompts[-size.num_seeded :]
    params = tuple(replace(SEEDED, seed=SEEDED.seed + index) for index in range(size.num_seeded))
    drawn = tuple(map(partial(_seeded, _transformers(known, torch.float32)), seeded, params))
    tokens = (*known.continuations[: size.num_greedy], *drawn)
    return Wanted((*greedy, *seeded), (*(GREEDY for _ in greedy), *params), tokens)


def _transformers(known: Reference, dtype: torch.dtype) -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(known.folder, dtype=dtype).eval()
    return model


@torch.no_grad()
def _seeded(model: torch.nn.Module, prompt: Sequence[int], params: SamplingParams) -> tuple[int, ...]:
    """The tokens that the sampler draws from transformers' logits, one by one. All on the CPU."""
    columns = SamplingColumns.of([Draw(1, 1, 0, params, len(prompt))], torch.device("cpu"))
    ids = list(prompt)
    for _ in range(params.max_tokens):
        logits_1V = model(torch.tensor([ids])).logits[:, -1]
        ids += sample(logits_1V, columns.input(torch.tensor([len(ids)]), np.array([len(ids)]))).tolist()
    return tuple(ids[len(prompt) :])


def differences(runner: ModelRunner, wanted: Wanted, page_size: int, *, overlap: bool, graphs: bool) -> list[str]:
    """A sentence for each request whose tokens differ."""
    graphed = GraphedRunner(runner, maker_of_graphs(runner.device))
    kv = PagedKv(graphed.kv_layout(page_size), NUM_KV_TOKENS // page_size, runner.device)
    stream, schedule = new_streams(runner.device)
    executor = executor_on(kv, graphed, MAX_REQUESTS, MAX_CONTEXT, stream, schedule)
    if graphs:
        executor.warm_up()
    worker = UnifiedWorker(planner_of(executor), "bench", MonotonicClock(), Policies(overlap, CHUNK_SIZE))
    try:
        answered = answers(worker, stream.idle, wanted)
    finally:
        executor.close()
    if graphs != bool(graphed.num_replays):
        raise RuntimeError(f"graphs were asked for: {graphs}; replayed: {graphed.num_replays} times; the log says why")
    return [
        difference(index, wanted.params[index], ours, theirs)
        for index, (ours, theirs) in enumerate(zip(answered, wanted.tokens, strict=True))
        if ours != theirs
    ]


def answers(worker: UnifiedWorker, idle: Callable[[], None], wanted: Wanted) -> list[tuple[int, ...]]:
    """The tokens of all requests, which are asked for together. RuntimeError if one fails, or if pages are not given
    back. `idle` waits for the forward stream."""
    tokens: list[tuple[int, ...]] = [() for _ in wanted.tokens]
    for index, (prompt, params) in enumerate(zip(wanted.prompts, wanted.params, strict=True)):
        worker.on_gateway(Assign(str(index), 0, prompt, params, num_choices=1, prefill=None))
    num_ended = 0
    while num_ended < len(tokens):
        if not worker.turn():
            idle()
        for message in worker.outbox.gateway:
            if not isinstance(message, Tokens):
                raise RuntimeError(f"a request failed: {message}")
            for choice in message.choices:
                tokens[int(choice.request_id)] += tuple(choice.token_ids)
                num_ended += bool(choice.finish)
        worker.outbox.gateway.clear()

    while worker.turn() or worker.planner.in_flight:  # a launch behind the last tokens may still run
        idle()
    pages = worker.stats().kv_pages
    if pages.free + pages.cached != pages.total:
        raise RuntimeError(f"pages are not given back: {pages}")
    return tokens


def difference(index: int, params: SamplingParams, ours: Sequence[int], theirs: Sequence[int]) -> str:
    """Names the first token in which two answers differ."""
    kind = "greedy" if params.temperature == 0 else "seeded"
    shared = next(
        (at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
    )
    there, here = (tokens[shared : shared + 3] for tokens in (theirs, ours))
    return f"request {index} ({kind}) differs from token {shared} on: {here}, not {there}"


# ---- bfloat16 ----


def _logits(sheet: StepSheet, arch: Architecture, device: str) -> None:
    known = reference(arch)
    prompt = known.prompts[-1]
    with torch.no_grad():
        exact_TV, theirs_TV = (
            _transformers(known, dtype)(torch.tensor([prompt])).logits[0].float()
            for dtype in (torch.float32, torch.bfloat16)
        )
    ours_TV = our_logits(ModelRunner.load(known.folder, device=device, dtype="bfloat16"), prompt)
    ours, theirs = relative_error(ours_TV, exact_TV), relative_error(theirs_TV, exact_TV)
    cells: dict[str, str | float] = {"family": arch, "our error": ours, "transformers' error": theirs}
    sheet.row("bfloat16 logits", cells, "Norm of the difference from float32, over the norm of float32's logits.")
    if not ours <= BFLOAT16_RATIO * theirs:
        sheet.fault(f"{arch}: bfloat16 logits are off by {ours:.3g}, expected at most {BFLOAT16_RATIO * theirs:.3g}")


@torch.inference_mode()
def our_logits(runner: ModelRunner, prompt: Sequence[int]) -> Tensor:
    """(T, V) on the CPU: all tokens but the last as one chunk, the last one as a decode."""
    count, vocab_size = len(prompt) - 1, runner.config.vocab_size
    layout = runner.kv_layout(PAGE_SIZE)
    kv = PagedKv(layout, 1 + layout.num_pages(len(prompt)), runner.device)
    ids_T = torch.tensor(prompt, device=runner.device)
    chunk = prompt_input(count, 0, PAGE_SIZE, vocab_size, runner.device)
    every_T = torch.arange(count, device=runner.device)
    first_TV = runner.forward(replace(chunk, input_ids_T=ids_T[:count], logit_indices_L=every_T), kv)
    last = prompt_input(1, count, PAGE_SIZE, vocab_size, runner.device)
    decode = replace(
        last, input_ids_T=ids_T[count:], extend_lens=(), extend_seq_lens=(), num_decodes=1,
        max_decode_seq_len=len(prompt),
    )  # fmt: skip
    return torch.cat([first_TV, runner.forward(decode, kv)]).cpu()
