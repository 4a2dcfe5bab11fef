"""The socket that workers dial, where it takes known keys only."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
import zmq
from prometheus_client import CollectorRegistry

from deploy.keys import new
from gateway.control import ControlSocket
from gateway.metrics import Tally
from protocol.errors import ConfigError
from runtime.keys import read_keys
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
    await wait_until(
        lambda: len(heard) == 1 and "connection refused" in caplog.messages
    )  # logged without a look of ours
    assert heard == [b"hello of a member"]
    (family,) = Tally("refused", "So many.", CollectorRegistry(), socket.refused, "reason").collect()
    assert {sample.labels["reason"]: sample.value for sample in family.samples} == {"key": 0, "handshake": 1}
    socket.close()
    context.destroy(linger=0)
    await asyncio.sleep(0)


async def test_without_keys_nobody_counts() -> None:
    socket = ControlSocket("tcp://127.0.0.1:0")
    socket.start(lambda _identity, _raw: None)
    shown = Tally("refused", "So many.", CollectorRegistry(), socket.refused, "reason")
    assert socket.refused() == {} and list(shown.collect()) == []
    socket.close()


def test_a_socket_with_keys_that_cannot_be_bound_leaves_nothing(tmp_path: Path) -> None:
    new(tmp_path / "keys", [])
    keys = read_keys(tmp_path / "keys/gateway")
    with pytest.raises(ConfigError, match="cannot listen on"):
        ControlSocket("tcp://203.0.113.7:0", keys)
