"""The socket that workers dial, where it takes known keys only."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any, cast

import pytest
import zmq
from prometheus_client import CollectorRegistry

from deploy.keys import new
from gateway.generation.tallies import Tally
from gateway.routing.control import Control
from gateway.routing.control_socket import ControlSocket
from gateway.routing.membership import Membership
from gateway.routing.retries import RetryRules
from protocol.errors import ConfigError
from runtime import bus
from runtime.clock import MonotonicClock
from runtime.keys import read_keys
from testkit.fake_worker import PATIENCE_S
from tests.gateway.conftest import wait_until


async def test_members_are_heard_and_strangers_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    new(tmp_path / "keys", [])
    socket = ControlSocket("tcp://127.0.0.1:0", read_keys(tmp_path / "keys/gateway", for_gateway=True))
    heard: list[bytes] = []
    socket.start(lambda _identity, raw: heard.append(raw))
    context: Any = zmq.Context()
    stranger, member = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    keys = read_keys(tmp_path / "keys/worker")
    member.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    member.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    member.setsockopt(zmq.CURVE_SERVERKEY, keys.gateway.encode())
    stranger.setsockopt(zmq.RECONNECT_IVL, -1)
    for each in (stranger, member):
        each.connect(socket.endpoint)
        with contextlib.suppress(zmq.Again):  # the gateway may have refused the stranger already
            each.send(b"hello of " + (b"a member" if each is member else b"nobody"), zmq.NOBLOCK)
    await wait_until(lambda: len(heard) == 1 and bool(socket.refused()) and "connection refused" in caplog.messages)
    assert heard == [b"hello of a member"]
    (family,) = Tally("refused", "So many.", CollectorRegistry(), socket.refused, "reason").collect()
    assert {sample.labels["reason"]: sample.value for sample in family.samples} == {"key": 0, "handshake": 1}
    socket.close()
    context.destroy(linger=0)
    await asyncio.sleep(0)


class Counted:
    """Stands for a ControlSocket: notes when it is asked for refused connections, which is what logs them."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()

    def start(self, _on_message: Any) -> None:
        """Nothing comes."""

    def refused(self) -> dict[str, int]:
        self.is_asked.set()
        return {}

    def close(self) -> None:
        """Nothing to close."""


async def test_refused_connections_are_logged_although_nobody_scrapes() -> None:
    socket = Counted()
    control = Control(cast(ControlSocket, socket), MonotonicClock(), "round_robin", RetryRules(3, 4.0), Membership(7))
    control.start()
    async with asyncio.timeout(PATIENCE_S):
        assert await socket.is_asked.wait()
    control.close()


async def test_without_keys_nobody_counts() -> None:
    socket = ControlSocket("tcp://127.0.0.1:0")
    socket.start(lambda _identity, _raw: None)
    shown = Tally("refused", "So many.", CollectorRegistry(), socket.refused, "reason")
    assert socket.refused() == {} and list(shown.collect()) == []
    socket.close()


async def test_a_full_queue_is_told_from_a_worker_that_is_not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "QUEUE_LIMIT", 1)
    socket, heard = ControlSocket("tcp://127.0.0.1:0"), list[bytes]()
    socket.start(lambda identity, _raw: heard.append(identity))
    context: Any = zmq.Context()
    worker = context.socket(zmq.DEALER)
    worker.setsockopt(zmq.RCVHWM, 1)
    worker.setsockopt(zmq.ROUTING_ID, b"d#1")
    assert not socket.send(b"d#1", b"early") and not socket.is_full
    worker.connect(socket.endpoint)
    worker.send(b"hello")
    await wait_until(lambda: bool(heard))
    await wait_until(lambda: not socket.send(b"d#1", bytes(1 << 20)))  # it reads nothing
    assert socket.is_full
    worker.close(0)
    await wait_until(lambda: not socket.send(b"d#1", b"late") and not socket.is_full)
    socket.close()
    context.destroy(linger=0)


def test_a_socket_with_keys_that_cannot_be_bound_leaves_nothing(tmp_path: Path) -> None:
    new(tmp_path / "keys", [])
    keys = read_keys(tmp_path / "keys/gateway")
    with pytest.raises(ConfigError, match="cannot listen on"):
        ControlSocket("tcp://203.0.113.7:0", keys)
