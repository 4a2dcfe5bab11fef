"""The first requests of a worker, before it reports that it is ready: one of each kind, as plans for its executor.

A GPU loads a kernel with its first call. In a serving loop the first request with top-p would hold up all others. Which
kernel an operation takes also depends on the number of rows, so each kind runs with one row and with the most rows.
A CPU loads and compiles nothing: it runs one request that asks for all of it, to see that it works.

    a prompt is computed and scored, other rows join and decode -> the prompt's choice joins; a draft proposes
    -> with a draft: a launch that proposes nothing -> one without a draft

Only page 0, the padding, is read and written. Rows are those of an owner to whom no row is ever given.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from model.inputs import int64_column
from model.sampler import sample_scored
from model.sampling_input import AllowedTokens
from protocol.errors import InternalError
from protocol.logit_rules import LogitRules
from protocol.logprobs import MAX_TOP_LOGPROBS, LogprobsAsked
from protocol.messages_gateway import SamplingParams
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.executor import Executor
from scheduler.execution.sampling_columns import SamplingColumns
from scheduler.execution.warm_up import clear_padding
from scheduler.plan import Chunk, Draw, Grant, Join, Plan, Scores

OWNER: Final = 2**31 - 1  # an owner number that no row comes to
NUM_LAUNCHES: Final = 4  # of a kind; a row is that many tokens longer behind them
BITS: Final = 32  # of a word of a mask
RULES: Final = LogitRules(
    frequency_penalty=0.5,
    presence_penalty=0.5,
    repetition_penalty=1.5,
    logit_bias=((0, 1.0),),
    allowed_token_ids=(0, 1),
    bad_words=((0, 1),),
)
GREEDY: Final = SamplingParams(max_tokens=1, temperature=0.0)
DRAWN: Final = replace(GREEDY, temperature=1.0)
KINDS: Final = {
    "greedy": GREEDY,
    "drawn": DRAWN,
    "top-k": replace(DRAWN, top_k=1),
    "top-p": replace(DRAWN, top_p=0.5),
    "min-p": replace(DRAWN, min_p=0.5),
    "logit rules": replace(GREEDY, rules=RULES),
    "no end before min_tokens": replace(GREEDY, min_tokens=1 << 20, stop_token_ids=(0,)),
    "log-probabilities": replace(DRAWN, logprobs=LogprobsAsked(MAX_TOP_LOGPROBS, processed=True)),
}
ALL_AT_ONCE: Final = SamplingParams(
    max_tokens=1,
    temperature=1.0,
    top_k=1,
    top_p=0.5,
    min_p=0.5,
    min_tokens=1 << 20,
    stop_token_ids=(0,),
    rules=RULES,
    logprobs=LogprobsAsked(MAX_TOP_LOGPROBS, processed=True),
)


@dataclass(frozen=True)
class WarmUp:
    """What `warm_requests` runs: each of `kinds` with each of `sizes` rows."""

    kinds: tuple[SamplingParams, ...]
    sizes: tuple[int, ...]

    @staticmethod
    def of(device: torch.device, most: int) -> "WarmUp":
        """What this device needs, with up to `most` rows."""
        if device.type == "cpu":
            return WarmUp((ALL_AT_ONCE,), (1,))
        return WarmUp(tuple(KINDS.values()), tuple(sorted({1, most})))


def warm_requests(executor: Executor, asked: WarmUp, shape: DraftShape = NO_DRAFT) -> None:
    """Runs the requests of `asked`. `shape`: of the executor's draft. Blocks.

    It is called before the first plan, by all ranks of a group together: all run the same list. InternalError if a
    launch fails. Page 0 holds zeros afterwards.
    """
    joined = 0
    for num_rows in asked.sizes:
        for params in asked.kinds:
            for plan in _plans(executor, num_rows, params, shape, tuple(range(1, joined + 1))):
                executor.run_alone(plan)
            joined = num_rows
    executor.run_alone(Plan(0, leaves=tuple(range(1, joined + 1))))
    _on_forward_stream(executor, asked.sizes)


def _plans(
    executor: Executor, num_rows: int, params: SamplingParams, shape: DraftShape, leaves: tuple[int, ...]
) -> Iterator[Plan]:
    """The launches of one kind: row 1 has a prompt, the others join as if theirs had been computed elsewhere."""
    layout, draft = executor.kv.layout, executor.runner.draft
    capacity = executor.page_table.req_to_page_cpu.shape[1] * layout.page_size
    length = max(1, min(max(2, layout.lookahead), capacity - NUM_LAUNCHES))
    ids, context = (0,) * length, (0,) * (length + 1)
    hidden, before = b"", tuple[int, ...]()
    if draft is not None:
        hidden, before = bytes(4 * layout.lookahead * draft.hidden_size), (0,) * (layout.lookahead - 1)

    def draw(row: int, tokens: tuple[int, ...]) -> Draw:
        reads = params.rules is not None and params.rules.reads_context
        until = length + params.min_tokens
        return Draw(row, OWNER, 0, params, until, capacity, context=tokens if reads else ())

    scores = Scores(1, ids[1:], MAX_TOP_LOGPROBS) if length > 1 else None
    chunk = Chunk(1, 0, ids, (draw(1, ids),), host_from=0, scores=scores)
    others = [Join(draw(row, context), length, 0, True, hidden, before) for row in range(2, num_rows + 1)]
    grants = tuple([Grant(row, OWNER, 0, (0,)) for row in range(1, num_rows + 1)])
    yield Plan(0, num_rows - 1, grants, leaves, tuple(others), (chunk,), ships=True)

    own = Join(draw(1, ()), length, None, begins=True)
    yield Plan(0, num_rows, joins=(own,), num_steps=shape.num_steps)
    if draft is not None:
        yield Plan(0, num_rows)
        yield Plan(0, num_rows, drafts=False)


def _on_forward_stream(executor: Executor, sizes: tuple[int, ...]) -> None:
    """Draws with masks, as those of grammars are, and clears page 0."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            with torch.inference_mode():
                for num_rows in sizes:
                    _draw_masked(executor, num_rows)
                clear_padding(executor.kv)
        except Exception as error:  # noqa: BLE001 - segments must not raise; the caller's thread raises it again
            errors.append(error)

    executor.device.forward.launch([run])
    executor.device.forward.record().synchronize()
    if errors:
        raise InternalError(f"drawing with masks has failed: {errors[0]}") from errors[0]


def _draw_masked(executor: Executor, num_rows: int) -> None:
    """Any token is allowed. No grammar is needed for that: masks come from the host as words."""
    device, vocab_size = executor.kv.device, executor.runner.config.vocab_size
    words_NW = torch.full((num_rows, -(-vocab_size // BITS)), -1, dtype=torch.int32, device=device)
    rows_N, lens = int64_column(range(num_rows), device), np.ones(num_rows, dtype=np.int64)
    logits_LV = torch.zeros((num_rows, vocab_size), device=device)
    for params in (GREEDY, DRAWN):
        columns = SamplingColumns.of([Draw(row, OWNER, 0, params, 0) for row in range(num_rows)], device)
        sampling = columns.input(torch.ones(num_rows, dtype=torch.int64, device=device), lens)
        sample_scored(logits_LV, replace(sampling, allowed=AllowedTokens(rows_N, words_NW)))
