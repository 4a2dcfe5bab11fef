from collections.abc import Sequence

import pytest

from protocol.request import FinishReason
from scheduler.engine import Engine, Launch
from scheduler.forward_batch import ExtendChunk, ForwardBatch, LaunchPlan
from scheduler.overlap_loop import OverlapLoop
from scheduler.req import Req
from scheduler.schedule_batch import Running, ScheduleBatch
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import CPU, ManualStream, admitted, greedy, make_engine
from tests.scheduler.test_engine import FailAt


class OneRequest:
    """A role with a single request, which notes what the loop asks of it: names with the number of the launch."""

    def __init__(self, engine: Engine, max_tokens: int) -> None:
        self.calls: list[str] = []
        self.req = admitted(engine, (5, 6, 7), greedy(max_tokens))
        self.tokens: list[int] = []
        self._numbers: dict[Launch, int] = {}
        self._running = Running()

    def choose(self) -> LaunchPlan | None:
        number = len(self._numbers)
        if self.req.finish is not None:
            return None
        if number == 0:
            plan: LaunchPlan | None = LaunchPlan((ExtendChunk(self.req, 0, 3, (self.req,)),), None)
        else:
            batch = self._running.for_next_launch()
            plan = None if batch is None else LaunchPlan((), batch)
        if plan is not None:
            self.calls.append(f"choose {number}")
        return plan

    def launched(self, launch: Launch) -> None:
        if not self._numbers:
            self._running.join(ScheduleBatch.launched([self.req], CPU))
        self.calls.append(f"launched {len(self._numbers)}")
        self._numbers[launch] = len(self._numbers)

    def process(self, launch: Launch, tokens: list[tuple[Req, int]]) -> None:
        self.calls.append(f"process {self._numbers[launch]}")
        for req, token in tokens:
            if req.finish is None:
                req.append(token)
                self.tokens.append(token)

    def failed(self, reqs: Sequence[Req], error: Exception) -> None:
        assert set(reqs) == {self.req}
        self.req.finish = FinishReason.CANCELLED
        self.calls.append(f"failed: {error}")


def drive(overlap: bool, max_tokens: int = 3, failing: int = 0) -> OneRequest:
    """Completes one launch whenever the loop has nothing else to do."""
    stream = ManualStream()
    runner = FakeRunner(vocab_size=97, context_length=64, before_forward=FailAt(failing))
    engine = make_engine(stream, runner=runner)
    role = OneRequest(engine, max_tokens)
    loop = OverlapLoop(engine, role, overlap)
    while loop.step() or loop.busy:
        if loop.busy and not loop.step():
            copy_done = engine.in_flight[0].copy_done
            assert copy_done is not None
            copy_done.synchronize()
    assert not loop.busy
    return role


def test_overlap_chooses_the_next_batch_before_the_results_of_the_last_are_known() -> None:
    assert drive(overlap=True).calls == [
        "choose 0",
        "launched 0",
        "choose 1",
        "launched 1",
        "process 0",
        "choose 2",
        "launched 2",
        "process 1",
        "process 2",
    ]


def test_the_serial_twin_does_not() -> None:
    assert drive(overlap=False).calls == [
        f"{call} {number}" for number in range(3) for call in ("choose", "launched", "process")
    ]


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_both_make_the_same_calls_and_the_same_tokens(max_tokens: int) -> None:
    overlapped, serial = drive(True, max_tokens), drive(False, max_tokens)
    assert sorted(overlapped.calls) == sorted(serial.calls)
    for name in ("choose", "launched", "process"):
        order = [[call for call in role.calls if call.startswith(name)] for role in (overlapped, serial)]
        assert order[0] == order[1]
    assert overlapped.tokens == serial.tokens == FakeRunner(vocab_size=97).expected_tokens((5, 6, 7), max_tokens)


def test_never_more_than_two_in_flight_and_a_step_never_blocks() -> None:
    stream = ManualStream()
    engine = make_engine(stream)
    loop = OverlapLoop(engine, OneRequest(engine, 6), overlap=True)
    assert [loop.step() for _ in range(4)] == [True, True, False, False]
    assert len(engine.in_flight) == 2 and loop.busy


def test_a_failed_launch_is_told_instead_of_processed() -> None:
    role = drive(overlap=False, max_tokens=1, failing=1)
    assert role.calls == ["choose 0", "launched 0", "failed: RuntimeError: forward 1 is broken"]
    assert role.tokens == []


def test_a_launch_that_cannot_be_built_fails_its_requests_and_leaves_the_batch_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine(ManualStream())
    role = OneRequest(engine, 4)
    loop = OverlapLoop(engine, role, overlap=False)
    assert loop.step()
    engine.in_flight[0].copy_done.synchronize()  # type: ignore[union-attr]
    assert loop.step()
    batch = role._running.batch
    assert batch is not None
    before = batch.seq_lens_B, batch.seq_lens_cpu

    def broken(*_: object) -> ForwardBatch:
        raise RuntimeError("no inputs")

    monkeypatch.setattr(ForwardBatch, "init_new", broken)
    assert loop.step()
    assert role.calls[-2:] == ["choose 1", "failed: RuntimeError: no inputs"]
    assert (batch.seq_lens_B, batch.seq_lens_cpu) == before
    assert not loop.busy
