import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from scheduler.execution.streams import (
    BESIDE_NICENESS,
    FORWARD_NICENESS,
    HostEvent,
    HostStream,
    InlineStream,
    lower_priority,
)


def gated(gate: threading.Event) -> Callable[[], None]:
    def wait() -> None:
        assert gate.wait(60)

    return wait


def test_segments_run_in_order_on_one_other_thread() -> None:
    stream = HostStream("test")
    seen: list[tuple[int, int]] = []
    for index in range(50):
        stream.launch([lambda index=index: seen.append((index, threading.get_ident()))])
    stream.record().synchronize()
    assert [index for index, _ in seen] == list(range(50))
    assert {ident for _, ident in seen} != {threading.get_ident()} and len({ident for _, ident in seen}) == 1
    stream.close()


def test_its_thread_steps_back_behind_the_others_of_its_process() -> None:
    mine, seen = os.getpriority(os.PRIO_PROCESS, 0), [0, 0]

    def look(index: int) -> Callable[[], None]:
        return lambda: seen.__setitem__(index, os.getpriority(os.PRIO_PROCESS, 0))

    for index, niceness in enumerate((0, 3)):
        stream = HostStream("test", niceness=niceness)
        stream.launch([look(index)])
        stream.close()
    assert seen == [mine, min(19, mine + 3)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine


def test_an_event_is_done_when_what_came_before_it_is() -> None:
    stream = HostStream("test")
    gate = threading.Event()
    ran: list[str] = []
    before = stream.record()
    stream.launch([gated(gate)])
    stream.launch([lambda: ran.append("segment")])
    after = stream.record()
    before.synchronize()
    assert before.done() and not after.done() and ran == []
    gate.set()
    after.synchronize()
    assert after.done() and ran == ["segment"]
    stream.close()


def test_one_stream_waits_for_an_event_of_another() -> None:
    first, second = HostStream("first"), HostStream("second")
    gate = threading.Event()
    ran: list[str] = []
    first.launch([gated(gate)])
    first.launch([lambda: ran.append("first")])
    second.wait(first.record())
    second.launch([lambda: ran.append("second")])
    end = second.record()
    assert not end.done() and ran == []
    gate.set()
    end.synchronize()
    assert ran == ["first", "second"]
    first.close()
    second.close()


def test_events_and_marks_wake_the_polling_loop() -> None:
    calls: list[str] = []
    stream = HostStream("test", on_event=lambda: calls.append("wake"))
    stream.launch([lambda: calls.append("marked") if stream.mark().done() else None])
    event = stream.record()
    stream.close()
    assert event.done()
    assert calls == ["wake", "marked", "wake"]


def test_an_event_is_done_before_the_loop_is_woken() -> None:
    seen: list[bool] = []
    stream = HostStream("test", on_event=lambda: seen.append(event.done()))
    gate = threading.Event()
    stream.launch([gated(gate)])
    event = stream.record()
    gate.set()
    stream.close()
    assert seen == [True]


def test_who_tells_late_tells_when_the_next_work_says_so() -> None:
    """Or before it waits for another stream. Without later work, at once."""
    calls: list[str] = []
    woken = threading.Semaphore(0)

    def on_event() -> None:
        calls.append("wake")
        woken.release()

    stream = HostStream("test", on_event)
    stream.tells_late = True
    gate, other = threading.Event(), HostEvent()
    stream.launch([gated(gate)])
    stream.record()
    stream.launch([lambda: calls.append("prepared"), stream.tell, lambda: calls.append("computed")])
    stream.record()
    stream.launch([lambda: calls.append("silent")])
    stream.record()
    stream.wait(other)
    gate.set()
    for _ in range(2):
        assert woken.acquire(timeout=60)
    assert calls == ["prepared", "wake", "computed", "silent", "wake"] and not other.done()
    other.set()
    stream.record()
    assert woken.acquire(timeout=60)
    stream.close()
    assert len(calls) == 6


def test_who_tells_late_tells_when_work_without_an_event_was_the_last() -> None:
    calls: list[str] = []
    woken, gate = threading.Event(), threading.Event()
    stream = HostStream("test", woken.set)
    stream.tells_late = True
    stream.launch([gated(gate)])
    stream.record()
    stream.launch([lambda: calls.append("told" if woken.is_set() else "untold")])
    gate.set()
    assert woken.wait(60)
    stream.close()
    assert calls == ["untold"]


def test_close_finishes_what_was_launched() -> None:
    stream = HostStream("test")
    ran: list[int] = []
    for index in range(20):
        stream.launch([lambda index=index: ran.append(index)])
    stream.close()
    assert ran == list(range(20))


def test_results_are_copies() -> None:
    for stream in (HostStream("test"), InlineStream()):
        source = torch.tensor([1, 2])
        copy = stream.to_host(source)
        source += 1
        assert stream.read_host(copy) == [1, 2]
        stream.close()


def test_inline_runs_at_once() -> None:
    stream = InlineStream()
    ran: list[int] = []
    stream.launch([lambda: ran.append(threading.get_ident())])
    assert ran == [threading.get_ident()]
    assert stream.record().done() and stream.mark().done()
    host = HostStream("test")
    host.launch([lambda: ran.append(0)])
    stream.wait(host.record())
    assert ran[-1] == 0
    stream.record().synchronize()
    host.close()


def test_a_thread_may_go_behind_all_streams() -> None:
    with ThreadPoolExecutor(1, initializer=lower_priority) as pool:
        behind = pool.submit(os.getpriority, os.PRIO_PROCESS, 0).result()
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert behind == min(19, mine + BESIDE_NICENESS) >= min(19, mine + FORWARD_NICENESS)
