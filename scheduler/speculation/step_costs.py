"""How long launches with a draft take, by their rows and proposals: what Speculation decides with."""

from collections.abc import Sequence
from typing import Final

from protocol.messages_gateway import SamplingParams
from runtime.clock import Clock
from scheduler.execution.executor import Executor
from scheduler.plan import Chunk, Draw, Join, Plan
from scheduler.planning.launch_costs import StepCosts

MAX_ROUNDS: Final = 5  # the fastest launch of each kind counts
GROUP_ROUNDS: Final = 3  # of a rank of a group: all ranks launch the same list, so no clock may end it
GROUP_GROWTH: Final = 4  # so that list has few sizes; alone each size is twice the one before
ENOUGH_S: Final = 1.0  # rounds that have taken so long are enough, but two are needed
LONG_S: Final = 0.2  # after a launch that takes so long, no more rows are tried, but two sizes are needed
CONTEXT: Final = 128  # tokens; attention costs more where more is verified
OWNER: Final = 2**31 - 1  # an owner number that no row comes to


def measure_step_costs(executor: Executor, max_rows: int, num_steps: int, clock: Clock) -> StepCosts:
    """Times launches of 1, 2, 4, ... rows (of a rank 1, 4, 16, ...), up to `max_rows`, with 0 to `num_steps` proposals
    each, then plain ones. First it times prompts. Blocks.

    They are whole launches, with the host's share. It is called before the first plan. Page 0 is all that is read and
    written. InternalError if a launch fails. All ranks of a group call it together, before the first step.
    """
    is_alone = executor.num_ranks == 1
    context = min(CONTEXT, executor.page_table.req_to_page_cpu.shape[1] * executor.kv.layout.page_size)
    prompt_token_s = _prompt_token_s(executor, context, clock)
    sizes: list[int] = []
    seconds: list[tuple[float, ...]] = []
    num_rows, joined = 1, 0
    while True:
        joins = tuple([_join(row, context) for row in range(joined + 1, num_rows + 1)])
        _timed(executor, Plan(0, num_rows, joins=joins), clock)
        times = _fastest(executor, num_rows, num_steps, clock)
        sizes.append(num_rows)
        seconds.append(times)
        is_long = len(sizes) > 1 and times[-1] > LONG_S
        if num_rows == max_rows or (is_alone and is_long):
            break
        num_rows, joined = min((2 if is_alone else GROUP_GROWTH) * num_rows, max_rows), num_rows
    return StepCosts(tuple(sizes), tuple(seconds), _plain(executor, sizes, context, clock), prompt_token_s)


def _prompt_token_s(executor: Executor, num_tokens: int, clock: Clock) -> tuple[float, float]:
    """Of a token of a prompt without a draft, and with one. Both take turns."""
    prompt = Chunk(1, 0, (0,) * num_tokens, ahead=(0,) * executor.kv.layout.lookahead)
    plans = [Plan(0, chunks=(prompt,), relay=False, drafts=drafts) for drafts in (False, True)]
    rounds: list[list[float]] = []
    began = clock.now()
    while len(rounds) < GROUP_ROUNDS:
        rounds.append([_timed(executor, plan, clock) for plan in plans])
        if executor.num_ranks == 1 and len(rounds) > 1 and clock.now() - began > ENOUGH_S:
            break
    plain_s, drafting_s = map(min, zip(*rounds, strict=True))
    return plain_s / num_tokens, drafting_s / num_tokens


def _plain(executor: Executor, sizes: Sequence[int], context: int, clock: Clock) -> tuple[float, ...]:
    """By size. Rows that have given up their drafts are not timed with one any more, so these launches come last. Each
    makes its rows a token longer."""
    rounds = max(1, min(MAX_ROUNDS if executor.num_ranks == 1 else GROUP_ROUNDS, context - 2))
    plain, leaves = list[float](), tuple(range(1, sizes[-1] + 1))
    for num_rows in sizes:
        joins = tuple([_join(row, context, rounds + 1) for row in range(1, num_rows + 1)])
        _timed(executor, Plan(0, num_rows, leaves=leaves, joins=joins, drafts=False), clock)
        plain.append(min(_timed(executor, Plan(0, num_rows, drafts=False), clock) for _ in range(rounds)))
        leaves = tuple(range(1, num_rows + 1))
    _timed(executor, Plan(0, leaves=leaves), clock)
    return tuple(plain)


def _fastest(executor: Executor, num_rows: int, num_steps: int, clock: Clock) -> tuple[float, ...]:
    """By proposals. All numbers of them take turns: other work on the machine slows down some launches, not one number.
    Each is timed behind a launch of its kind, as it is later."""
    fastest = [float("inf")] * (num_steps + 1)
    is_alone = executor.num_ranks == 1
    began = clock.now()
    for done in range(MAX_ROUNDS if is_alone else GROUP_ROUNDS):
        if is_alone and done > 1 and clock.now() - began > ENOUGH_S:
            break
        for steps in range(num_steps, -1, -1):
            plan = Plan(0, num_rows, num_steps=steps)
            executor.run_alone(plan)
            fastest[steps] = min(fastest[steps], _timed(executor, plan, clock))
    return tuple(fastest)


def _join(row: int, context: int, num_left: int = 0) -> Join:
    """A choice `num_left` tokens before its end. It has no pages, so all that it writes goes to page 0."""
    params = SamplingParams(max_tokens=1, temperature=0.0)
    return Join(Draw(row, OWNER, 0, params, 0, limit=context), seq_len=context - num_left, input_id=0)


def _timed(executor: Executor, plan: Plan, clock: Clock) -> float:
    began = clock.now()
    executor.run_alone(plan)
    return clock.now() - began
