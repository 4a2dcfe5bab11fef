"""The thread that gives frames to porters: what it puts together, when memory is free, and what is said of losses."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from protocol.errors import WireError
from transfer.backends.ray.parcel_wire import MAX_CALLS, PARCEL_BYTES, ParcelWire
from transfer.backends.ray.porter import Parcel

WAIT_S = 300.0


class Porters:
    """Peers' porters: each call waits for `gate`, and is kept with its future."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.parcels: list[list[list[bytes]]] = []
        self.futures: list[Future[Any]] = []
        self.refuse = False
        self.answers = True  # each call ends well, at once
        self.num_found = 0
        self.changed = threading.Condition()

    def find(self, endpoint: str) -> "Porters":
        self.num_found += 1
        if endpoint.endswith("nobody"):
            self.refuse = True
            self._note()
            raise WireError("no porter")
        return self

    def carry(self, parcel: Parcel) -> "Future[Any]":
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        if self.refuse:
            raise WireError("refused")
        self.parcels.append([[part.tobytes() for part in frame] for frame in parcel])
        self.futures.append(Future())
        if self.answers:
            self.futures[-1].set_result(None)
        self._note()
        return self.futures[-1]

    def _note(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def until(self, met: Callable[[], bool]) -> None:
        with self.changed:
            for _ in range(3000):
                if met():
                    return
                self.changed.wait(0.01)
        raise AssertionError("not reached")


@pytest.fixture
def porters() -> Porters:
    return Porters()


@pytest.fixture
def wire(porters: Porters) -> Iterator[ParcelWire]:
    made = ParcelWire(porters.find)
    made.connect(1, "ray://baton/one")
    yield made
    porters.gate.set()
    made.close()


def test_a_frame_is_read_when_its_parcel_was_given(wire: ParcelWire, porters: Porters) -> None:
    page = bytearray(b"page")
    reading = wire.send(1, [b"header", memoryview(page)])
    porters.until(lambda: reading.done)
    page[:] = b"lost"
    assert porters.parcels == [[[b"header", b"page"]]]


def test_frames_that_gather_go_together_up_to_the_size_of_a_parcel(wire: ParcelWire, porters: Porters) -> None:
    porters.gate.clear()
    first = wire.send(1, [b"0"])
    assert porters.entered.wait(WAIT_S) and not first.done
    half = bytes(PARCEL_BYTES // 2)
    readings = [wire.send(1, [part]) for part in (b"1", b"2", half, half, bytes(PARCEL_BYTES + 1), b"3")]
    porters.gate.set()
    porters.until(lambda: all(reading.done for reading in readings))
    assert [[len(part) for (part,) in parcel] for parcel in porters.parcels] == [
        [1],
        [1, 1, len(half)],
        [len(half)],
        [PARCEL_BYTES + 1],
        [1],
    ]
    assert porters.num_found == 1


def test_frames_gather_while_calls_are_under_way(wire: ParcelWire, porters: Porters) -> None:
    porters.answers = False
    for number in range(MAX_CALLS):
        reading = wire.send(1, [b"first"])
        porters.until(lambda reading=reading: reading.done)  # type: ignore[misc]
        assert len(porters.parcels) == number + 1
    readings = [wire.send(1, [b"later"]) for _ in range(5)]
    porters.futures[0].set_result(None)
    porters.until(lambda: all(reading.done for reading in readings))
    assert porters.parcels == [[[b"first"]]] * MAX_CALLS + [[[b"later"]] * 5]


def test_what_waits_for_a_peer_that_is_gone_is_dropped_and_not_read(wire: ParcelWire, porters: Porters) -> None:
    wire.connect(2, "ray://baton/two")
    porters.gate.clear()
    in_hand = wire.send(1, [b"in hand"])
    assert porters.entered.wait(WAIT_S)
    dropped, other = wire.send(1, [b"dropped"]), wire.send(2, [b"other"])
    wire.disconnect(1)
    assert (in_hand.done, dropped.done, other.done) == (False, True, False)
    porters.gate.set()
    porters.until(lambda: in_hand.done and other.done)
    assert porters.parcels == [[[b"in hand"]], [[b"other"]]]


def test_a_parcel_that_got_lost_breaks_its_peer_once(wire: ParcelWire, porters: Porters) -> None:
    porters.answers = False
    wire.connect(2, "ray://baton/two")
    readings = [wire.send(1, [b"lost"]), wire.send(2, [b"well"])]
    porters.until(lambda: all(reading.done for reading in readings))
    porters.futures[1].set_result(None)
    assert wire.broken() == []
    porters.futures[0].set_exception(RuntimeError("the actor died"))
    assert (wire.broken(), wire.broken()) == ([1], [])


def test_a_loss_of_an_older_connection_breaks_nothing(wire: ParcelWire, porters: Porters) -> None:
    porters.answers = False
    reading = wire.send(1, [b"lost"])
    porters.until(lambda: reading.done)
    wire.disconnect(1)
    wire.connect(1, "ray://baton/one")
    porters.futures[0].set_exception(RuntimeError("the actor died"))
    assert wire.broken() == []


def test_a_porter_that_refuses_or_is_not_there_breaks_its_peer_and_holds_no_memory(
    wire: ParcelWire, porters: Porters
) -> None:
    wire.connect(2, "ray://baton/nobody")
    readings = [wire.send(2, [b"to nobody"]), wire.send(1, [b"refused"])]
    porters.until(lambda: all(reading.done for reading in readings))
    assert porters.parcels == []
    assert wire.broken() == [1, 2]


def test_a_thread_that_has_died_is_noticed(wire: ParcelWire, porters: Porters, monkeypatch: pytest.MonkeyPatch) -> None:
    died = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: died.set())
    monkeypatch.setattr(porters, "carry", lambda _parcel: 1 / 0)
    assert wire.broken() == []
    wire.send(1, [b"frame"])
    assert died.wait(WAIT_S)
    wire._thread.join(WAIT_S)
    with pytest.raises(AssertionError, match="the thread that gives frames to porters has ended"):
        wire.broken()


def test_an_address_of_another_kind_is_refused(wire: ParcelWire) -> None:
    with pytest.raises(WireError, match="begins with ray://"):
        wire.connect(3, "tcp://127.0.0.1:1")


def test_closing_ends_the_thread_and_frees_all_memory(porters: Porters) -> None:
    wire = ParcelWire(porters.find)
    wire.connect(1, "ray://baton/one")
    readings = [wire.send(1, [b"last"]) for _ in range(5)]
    wire.close()
    wire.close()
    assert all(reading.done for reading in readings)
    assert "parcels" not in {thread.name for thread in threading.enumerate() if thread.is_alive()}
