from dataclasses import replace

import pytest
import torch

from model.inputs import ModelInput
from model.mirrored_kv import MirroredKv
from model.paged_kv import PagedKv
from protocol.errors import InternalError
from scheduler.engine import Engine, Launch
from scheduler.forward_batch import ExtendChunk, LaunchPlan
from scheduler.kv_book import KvBook
from scheduler.req import Req
from scheduler.schedule_batch import ScheduleBatch
from scheduler.streams_host import HostStream, InlineStream
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import CPU, ManualStream, admitted, greedy, make_engine, make_req


def finish(engine: Engine, stream: ManualStream) -> Launch:
    """Runs the oldest launch and takes it."""
    assert engine.take_completed() is None
    copy_done = engine.in_flight[0].copy_done
    assert copy_done is not None
    copy_done.synchronize()
    launch = engine.take_completed()
    assert launch is not None
    return launch


def prompt_plan(req: Req, start: int = 0, end: int | None = None) -> LaunchPlan:
    end = req.prompt_len if end is None else end
    return LaunchPlan((ExtendChunk(req, start, end, (req,) if end == req.prompt_len else ()),), None)


class FailAt:
    """Raises in the chosen forwards, counted from 1."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.count = 0

    def __call__(self, inp: ModelInput) -> None:
        self.count += 1
        if self.count in self.failing:
            raise RuntimeError(f"forward {self.count} is broken")


def test_tokens_relayed_on_the_device_are_those_of_the_model() -> None:
    stream = ManualStream()
    engine = make_engine(stream)
    runner = FakeRunner(vocab_size=97, context_length=64)
    prompt = tuple(range(10))
    req = admitted(engine, prompt, greedy(6))
    engine.launch(prompt_plan(req, 0, 7))
    engine.launch(prompt_plan(req, 7))
    batch = ScheduleBatch.launched([req], CPU)
    for _ in range(5):  # nothing has run yet: every input is a sentinel
        engine.launch(LaunchPlan((), batch))
    assert (req.num_computed, req.num_sampled, engine.num_launches) == (10, 6, 7)
    got = [token for _ in range(7) for _, token in engine.tokens(finish(engine, stream))]
    assert got == runner.expected_tokens(prompt, 6)
    assert not engine.in_flight and engine.take_completed() is None
    engine.close()
    assert stream.closed


def test_a_failed_launch_gives_its_error_and_no_tokens_and_the_engine_goes_on() -> None:
    stream = ManualStream()
    engine = make_engine(stream, runner=FakeRunner(vocab_size=97, context_length=64, before_forward=FailAt(1)))
    bad, good = admitted(engine, (1, 2), name="bad"), admitted(engine, (3, 4), name="good")
    engine.launch(prompt_plan(bad))
    engine.launch(prompt_plan(good))
    failed = finish(engine, stream)
    assert isinstance(failed.error, RuntimeError) and engine.tokens(failed) == []
    fine = finish(engine, stream)
    assert fine.error is None
    assert engine.tokens(fine) == [(good, FakeRunner(vocab_size=97).expected_tokens((3, 4), 1)[0])]


@pytest.mark.parametrize("debug", [True, False])
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_failed_launch_does_not_fail_those_who_join_the_next(debug: bool, failing: int) -> None:
    """The next launch is enqueued already, with the failed requests still in it, and with new ones."""
    stream = ManualStream()
    runner = FakeRunner(vocab_size=97, context_length=64, before_forward=FailAt(failing))
    engine = make_engine(stream, runner=runner, debug=debug)
    old, new = admitted(engine, (1, 2), name="old"), admitted(engine, (3, 4, 5), name="new")
    engine.launch(prompt_plan(old))
    running = ScheduleBatch.launched([old], CPU)
    if failing > 2:
        engine.launch(LaunchPlan((), running))
    engine.launch(LaunchPlan((), running))
    new.outputs = runner.expected_tokens((3, 4, 5), 1)
    engine.launch(LaunchPlan((ExtendChunk(new, 0, 3),), None))
    running.merge(ScheduleBatch.prebuilt([new], CPU))
    engine.launch(LaunchPlan((), running))
    launches = [finish(engine, stream) for _ in range(len(engine.in_flight))]
    assert [launch.error is not None for launch in launches] == [n == failing for n in range(1, len(launches) + 1)]
    assert dict(engine.tokens(launches[-1]))[new] == runner.expected_tokens((3, 4, 5), 2)[1]


def test_debug_mode_compares_host_and_device_before_each_launch() -> None:
    engine = make_engine(ManualStream(), debug=True)
    req = admitted(engine)
    engine.launch(prompt_plan(req))
    running = ScheduleBatch.launched([req], CPU)
    running.seq_lens_cpu = running.seq_lens_cpu + 1
    with pytest.raises(AssertionError):
        engine.launch(LaunchPlan((), running))


@pytest.mark.parametrize("debug", [True, False])
def test_debug_mode_finds_a_token_that_is_read_twice(debug: bool) -> None:
    stream = ManualStream()
    engine = make_engine(stream, debug=debug)
    req = admitted(engine)
    engine.launch(prompt_plan(req))
    running = ScheduleBatch.launched([req], CPU)
    engine.launch(LaunchPlan((), running, relay=False))  # stashes nothing
    engine.launch(LaunchPlan((), running))
    errors = [finish(engine, stream).error for _ in range(3)]
    assert errors[:2] == [None, None]
    assert isinstance(errors[2], InternalError) == debug


def test_what_is_released_in_flight_is_reused_after_the_launch() -> None:
    stream = ManualStream()
    engine = make_engine(stream, num_pages=8, max_requests=1)
    req = admitted(engine, (1, 2, 3), greedy(4))
    num_pages, row = len(req.held.pages), req.held.row
    engine.launch(prompt_plan(req))
    engine.launch(LaunchPlan((), ScheduleBatch.launched([req], CPU)))
    req.release(engine.book)
    assert req.holding is None
    req.release(engine.book)  # the second time does nothing
    for _ in range(2):
        engine.collect()
        assert engine.book.pages.counts().quarantined == num_pages
        assert engine.book.rows.num_free == 0
        finish(engine, stream)
    engine.book.pages.check()
    assert (engine.book.pages.counts().free, engine.book.rows.num_free) == (7, 1)
    assert admitted(engine, (4,), greedy(4)).held.row == row


def test_an_idle_engine_reuses_at_once() -> None:
    engine = make_engine(ManualStream(), num_pages=8)
    req = admitted(engine)
    req.release(engine.book)
    assert engine.book.pages.counts().free == 7


def test_a_transfer_that_reads_holds_pages_and_row_back() -> None:
    engine = make_engine(ManualStream(), num_pages=8)
    req = admitted(engine)
    num_pages = len(req.held.pages)
    reading = [True]
    req.release(engine.book, lambda: reading[0])
    engine.collect()
    assert engine.book.pages.counts().quarantined == num_pages
    reading[0] = False
    engine.collect()
    assert (engine.book.pages.counts().quarantined, engine.book.rows.num_free) == (0, 8)


def filled(engine: Engine, page: int, value: float) -> None:
    engine.kv.layer(0)[page] = value


def test_a_copy_runs_behind_the_launches_before_it_and_ahead_of_the_next() -> None:
    stream = ManualStream()
    seen: list[float] = []
    engine = make_engine(stream)
    req = admitted(engine, (1, 2, 3, 4), greedy(4))
    source, target, free = req.held.pages[0], req.held.pages[1], engine.book.pages.num_free
    filled(engine, target, -7.0)
    engine.launch(prompt_plan(req))
    engine.copy_pages([source], [target])
    stream.launch([lambda: seen.append(float(engine.kv.layer(0)[target].sum()))])
    assert float(engine.kv.layer(0)[target].mean()) == -7.0
    req.release(engine.book)
    finish(engine, stream)
    engine.collect()
    assert engine.book.pages.num_free == free  # the copy has not run: its pages are not reused
    written = engine.kv.layer(0)[source].clone()
    assert written.abs().sum() > 0
    stream.record().synchronize()
    assert torch.equal(engine.kv.layer(0)[target], written)
    assert seen == [float(written.sum())]
    engine.collect()
    assert engine.book.pages.counts().free == engine.book.pages.counts().total


def test_a_context_that_grows_page_by_page_gets_the_same_tokens() -> None:
    """A longer one beside it keeps the batch's page table wide enough, so its width never asks for a new one."""
    stream = ManualStream()
    engine = make_engine(stream)
    prompts = {"short": (1, 2, 3), "long": tuple(range(20))}
    short, long = make_req(prompts["short"], greedy(12), name="short"), admitted(engine, prompts["long"], greedy(12))
    (short.holding,) = engine.book.admit(3, 3, 1) or ()
    engine.write_pages(short.held)
    for req in (short, long):
        engine.launch(prompt_plan(req))
    batch = ScheduleBatch.launched([short, long], CPU)
    for length in range(4, 15):  # all are enqueued before the first runs
        added = engine.book.grow(short.held, length)
        assert added is not None and len(added) == (length % 4 == 1)
        engine.add_pages(short.held, added)
        engine.launch(LaunchPlan((), batch))

    got: dict[Req, list[int]] = {short: [], long: []}
    for _ in range(13):
        for req, token in engine.tokens(finish(engine, stream)):
            got[req].append(token)
    model = FakeRunner(vocab_size=97, context_length=64)
    assert got == {req: model.expected_tokens(req.prompt_ids, 12) for req in (short, long)}


def test_copying_nothing_enqueues_nothing() -> None:
    stream = ManualStream()
    make_engine(stream).copy_pages([], [])
    assert not stream.queue


@pytest.mark.parametrize("ships", [True, False])
def test_layers_are_told_as_they_are_written_where_kv_leaves(ships: bool) -> None:
    stream = ManualStream()
    engine = make_engine(stream)
    launch = engine.launch(replace(prompt_plan(admitted(engine)), ships=ships))
    assert not launch.layers
    finish(engine, stream)
    assert [layer for layer, _ in launch.layers] == ([0, 1] if ships else [])
    assert all(event.done() for _, event in launch.layers)


def test_a_leaked_sentinel_fails_the_launch() -> None:
    stream = ManualStream()
    engine = make_engine(stream)
    req = admitted(engine)
    engine.launch(LaunchPlan((), ScheduleBatch.launched([req], CPU)))  # its prompt was never launched
    launch = finish(engine, stream)
    assert launch.error is not None and "which no launch has stashed" in str(launch.error)


def test_a_launch_without_rows_to_sample_has_no_tokens() -> None:
    stream = ManualStream()
    engine = make_engine(stream)
    req = admitted(engine)
    engine.launch(prompt_plan(req, 0, 2))
    launch = finish(engine, stream)
    assert (engine.tokens(launch), launch.error, req.num_sampled) == ([], None, 0)


def test_on_a_thread_too() -> None:
    engine = make_engine(HostStream("forward"))
    runner = FakeRunner(vocab_size=97, context_length=64)
    req = admitted(engine, (9, 8, 7), greedy(5))
    engine.launch(prompt_plan(req))
    batch = ScheduleBatch.launched([req], CPU)
    got: list[int] = []
    for _ in range(4):
        engine.launch(LaunchPlan((), batch))
    while engine.in_flight:
        copy_done = engine.in_flight[0].copy_done
        assert copy_done is not None
        copy_done.synchronize()
        launch = engine.take_completed()
        assert launch is not None
        got += [token for _, token in engine.tokens(launch)]
    assert got == runner.expected_tokens((9, 8, 7), 5)
    engine.close()


def test_a_failed_copy_ends_the_worker_instead_of_leaving_kv_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ManualStream()
    engine = make_engine(stream)

    def broken(*_: object) -> None:
        raise ValueError("no such page")

    monkeypatch.setattr(engine.kv, "copy_pages", broken)
    engine.copy_pages([1], [2])
    engine.collect()
    stream.record().synchronize()
    with pytest.raises(RuntimeError, match="copy of KV pages has failed"):
        engine.collect()


def engine_with(memory: type[PagedKv]) -> Engine:
    runner, stream = FakeRunner(vocab_size=97, context_length=64), InlineStream()
    kv = memory(runner.kv_layout(4), 16, CPU)
    book = KvBook(kv.num_pages, kv.layout.page_size, max_requests=2, max_context=64)
    return Engine(runner, kv, book, forward=stream, schedule=stream, device=CPU)


def test_only_pages_of_chunks_for_the_host_reach_the_twin() -> None:
    """A launch ships two prompts. Of one, a device at the peer reads the KV where it is."""
    engine = engine_with(MirroredKv)
    stays, goes = admitted(engine, tuple(range(6)), greedy(1)), admitted(engine, tuple(range(9)), greedy(1))
    chunks = ExtendChunk(stays, 0, 6, (stays,)), ExtendChunk(goes, 0, 8, (), to_host=True)
    launch = engine.launch(LaunchPlan(chunks, None, relay=False, ships=True))
    assert engine.take_completed() is launch and launch.error is None
    layers = range(engine.kv.layout.num_layers)
    assert [layer for layer, _ in launch.layers] == list(layers)

    for layer in layers:
        filled = [page for page in range(1, 16) if any(engine.kv.page_bytes_view(layer, page, 1))]
        assert filled == goes.held.pages[:2]
        assert all(engine.kv.layer(layer)[page].any() for page in stays.held.pages[:2])


@pytest.mark.parametrize("memory", [PagedKv, MirroredKv])
def test_landed_pages_are_copied_to_the_device_and_then_shared(memory: type[PagedKv]) -> None:
    engine = engine_with(memory)
    landed = engine.kv.page_bytes_view(1, 3, 1)
    landed[:] = b"\x01" * landed.nbytes
    event = engine.land((3,), (3,), (5,))
    assert (event is not None) == (memory is MirroredKv)
    layer = engine.kv.layer(1)
    assert layer[3].any() and torch.equal(layer[3], layer[5]) and not layer[4].any()
