"""A worker that its gateway refuses: it is told at once, and dials again slowly. Real sockets, invented moments."""

import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from deploy.keys import new
from runtime.bus import REDIAL_S, Dealer, Router
from runtime.curve import MARK, NO_HANDSHAKE, OPEN, UNKNOWN_KEY, Curve, Security
from runtime.keys import read_keys
from runtime.log import get_log

LOG = get_log("test")


@pytest.fixture
def context() -> Iterator[Any]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def curves(context: Any, tmp_path: Path) -> Iterator[Callable[[str], Curve]]:
    """What protects the sockets of a process with this folder of keys: one of two gateways, or their workers."""
    new(tmp_path / "ours", [])
    new(tmp_path / "theirs", [])
    made: list[Curve] = []
    workers: zmq.Context[zmq.Socket[bytes]] = zmq.Context()  # a context has one list of who may connect

    def make(folder: str) -> Curve:
        made.append(Curve(read_keys(tmp_path / folder), context if "gateway" in folder else workers, LOG))
        return made[-1]

    yield make
    for each in made:
        each.close()
    workers.destroy(linger=0)


def look(dealer: Dealer, now: float) -> str:
    """What `tend` says, once there is news of the connection."""
    assert dealer._watch is not None
    for _ in range(12_000):
        if refusal := dealer.tend(now):
            return refusal
        if dealer._watch.num_made:
            return ""
        dealer._watch._events.poll(10)
    raise AssertionError("no news")


def is_dialling(dealer: Dealer) -> bool:
    """A socket without a peer takes nothing."""
    return dealer.send(b"are you there")


def address_of(router: Router, key: str) -> str:
    return router.endpoint.partition(MARK)[0] + (MARK + key if key else "")


def test_a_worker_that_is_not_on_the_list_joins_once_it_is(context: Any, curves: Any, tmp_path: Path) -> None:
    router = Router(context, "127.0.0.1", curves("ours/gateway"))
    shutil.copy(tmp_path / "ours/worker/gateway.key", tmp_path / "theirs/worker/gateway.key")
    address = address_of(router, read_keys(tmp_path / "ours/gateway").public)
    dealer = Dealer(context, address, b"w#1", security=curves("theirs/worker"))
    assert look(dealer, now=100.0) == UNKNOWN_KEY
    assert not is_dialling(dealer)
    assert dealer.tend(now=100.0 + REDIAL_S - 0.1) == "" and not is_dialling(dealer)
    dealer.tend(now=100.0 + REDIAL_S)
    assert look(dealer, now=200.0) == UNKNOWN_KEY  # it has dialled again
    shutil.copy(tmp_path / "theirs/worker/allowed/worker.key", tmp_path / "ours/gateway/allowed/late.key")
    dealer.tend(now=200.0 + REDIAL_S)
    assert look(dealer, now=300.0) == ""
    assert dealer.send(b"here I am") and router.socket.poll(120_000)
    assert router.receive() == [(b"w#1", b"here I am")]
    dealer.close()
    router.close()


@pytest.mark.parametrize(
    "gateway, worker, key_of",
    [
        ("ours/gateway", "theirs/worker", "theirs/gateway"),  # each has keys of its own
        ("ours/gateway", None, None),  # only the gateway has
        (None, "ours/worker", "ours/gateway"),  # only the worker has
    ],
)
def test_keys_that_do_not_go_together_are_told(
    context: Any, curves: Any, tmp_path: Path, gateway: str | None, worker: str | None, key_of: str | None
) -> None:
    def security(folder: str | None) -> Security:
        return OPEN if folder is None else curves(folder)

    router = Router(context, "127.0.0.1", security(gateway))
    address = address_of(router, "" if key_of is None else read_keys(tmp_path / key_of).public)
    dealer = Dealer(context, address, b"w#1", security=security(worker))
    for moment in (100.0, 200.0):
        assert look(dealer, moment) == NO_HANDSHAKE
        assert not is_dialling(dealer)
        dealer.tend(moment + REDIAL_S)
    dealer.close()
    router.close()


def test_a_gateway_that_is_not_there_yet_is_no_refusal(context: Any, curves: Any, tmp_path: Path) -> None:
    with socket.socket() as silent:  # it holds the port, and refuses connections, as it does not listen
        silent.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}{MARK}{read_keys(tmp_path / 'ours/gateway').public}"
        dealer = Dealer(context, address, b"w#1", security=curves("ours/worker"))
        assert dealer._watch is not None
        assert not dealer._watch._events.poll(300)
        assert dealer.tend(now=100.0) == "" and is_dialling(dealer)
        dealer.close()
