"""A launch without rows, as a rank computes it while others have work: one forward, and nothing else happens."""

import pytest
import torch

from scheduler.draft_shape import NO_DRAFT
from scheduler.execution.batches import ScheduleBatch
from scheduler.execution.executor import Executor
from scheduler.execution.future_map import DraftExtras, FutureMap
from scheduler.execution.streams import InlineStream, Stream
from scheduler.plan import Plan
from scheduler.planning.steps import Steps
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import (
    CPU,
    ManualEvent,
    ManualStream,
    admitted,
    begun,
    decode,
    finish,
    finish_all,
    greedy,
    make_executor,
    make_pair,
    make_planner,
    prompt_chunk,
)
from tests.scheduler.grouped import OTHERS, Answered, Counting

NONE = torch.zeros(0, dtype=torch.int64)


def rank(counting: Counting, stream: Stream) -> Executor:
    runner = FakeRunner(vocab_size=97, context_length=64, before_forward=counting)
    return make_executor(stream, runner=runner, forward_clock=VirtualClock(7.0))


def test_between_launches_with_rows_it_changes_no_token() -> None:
    """And a launch with rows enters as many collectives."""
    counting = Counting()
    executor = rank(counting, ManualStream())
    planner = make_planner(executor, agreement=Answered(counting.size))
    planner.launch()
    req = admitted(planner, (5, 6, 7), greedy(4))
    planner.launch(prompt_chunk(req))
    planner.launch()
    planner.join([req])
    for _ in range(3):
        decode(planner)
    planner.launch()
    results = finish_all(planner, executor)
    expected = FakeRunner(vocab_size=97, context_length=64).expected_tokens((5, 6, 7), 4)
    assert [run[0] for result in results for run in result.tokens] == expected
    assert [len(inp.input_ids_T) for inp in counting.inputs] == [0, 3, 0, 1, 1, 1, 0]
    counting.expect(7)


@pytest.mark.parametrize("speculates", [False, True])
def test_the_future_map_returns_first(speculates: bool) -> None:
    """Given no rows it makes no buffer, waits for no event, and enqueues nothing."""
    future_map, before = FutureMap(4, CPU), FutureMap(4, CPU)
    empty, payload = ScheduleBatch.of((), CPU, speculates=speculates), torch.zeros(0, 1, dtype=torch.int64)
    extras = DraftExtras(payload, payload.float(), torch.zeros(0, 8), payload)
    ids, lengths = empty.input_ids_B, empty.seq_lens_B

    event = ManualEvent(ManualStream())
    future_map.expect(event)
    future_map.stash(NONE, NONE, NONE, extras)
    future_map.stash_extras(NONE, extras, NONE)
    future_map.publish(NONE, NONE, NONE)
    future_map.seed_seq_lens((), NoStream())
    future_map.resolve_seq_lens_cpu(empty, NoStream())
    assert future_map.is_ready(empty)
    assert future_map.resolve_future(NONE, NONE) is NONE
    assert future_map.resolve_extras(NONE, NONE) == DraftExtras()
    empty.set_input_ids_sentinel()

    assert empty.input_ids_B is ids and empty.seq_lens_B is lengths and empty._members is None
    held, wanted = vars(future_map), vars(before)
    for name in ("output_tokens_buf", "new_seq_lens_buf"):
        assert torch.equal(held[name], wanted[name])
    assert [held[name] for name in ("_extras", "_publish_ready", "_seeds")] == [{}, event, []], "others may wait for it"


class NoStream(InlineStream):
    """Nothing may be enqueued on it."""

    def launch(self, *_: object) -> None:
        raise AssertionError("there is nothing to do")

    record = wait = to_host = read_host = launch  # type: ignore[assignment]


def test_it_has_no_rows_even_where_others_have_a_graph_of_it() -> None:
    """A rank without rows wants a graph: it is no hindrance to the others."""
    for max_graphed in (0, 4):
        agreement, executor = Answered(), rank(Counting(), InlineStream())
        Steps(executor.submit, agreement, NO_DRAFT, max_graphed).submit(Plan(1))
        assert [(row.num_tokens, row.wants_graph) for row in agreement.outgoing] == [(0, True)]
        assert executor.launches[0].step.num_tokens == (0, OTHERS)


class Announcing(Answered):
    """Notes what it announces."""

    def __init__(self) -> None:
        super().__init__()
        self.announced: list[tuple[int, bool]] = []

    def announce(self, num_tokens: int, *, wants_graph: bool = False) -> None:
        self.announced.append((num_tokens, wants_graph))
        super().announce(num_tokens, wants_graph=wants_graph)


def test_a_graph_is_wanted_beside_as_many_tokens_as_one_has_and_no_more() -> None:
    agreement = Announcing()
    runner = FakeRunner(vocab_size=97, context_length=64, max_graphed=4)
    executor, planner = make_pair(ManualStream(), runner=runner, agreement=agreement)
    begun(planner, (5, 6, 7, 8, 9), greedy(4))
    finish(planner, executor)
    decode(planner)
    assert agreement.announced == [(5, False), (1, True)]
