"""Gateway and workers that know one another by keys, as real processes: they serve, and strangers reach no socket."""

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from deploy.keys import new
from runtime.keys import Keys, read_keys
from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import FAKE, PATIENCE_S, BatonProcess
from tests.selecting import broad

pytestmark = pytest.mark.slow
RUNNER = FakeRunner()
FAILURES = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
OVER = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    new(tmp_path / "keys", ["prefill-host", "decode-host"])
    new(tmp_path / "foreign", [])
    return tmp_path / "keys"


@pytest.fixture
def context() -> Iterator[Any]:
    made: Any = zmq.Context()
    yield made
    made.destroy(linger=0)


def try_to_connect(context: Any, kind: int, port: int, own: Keys | None, server: str) -> bool:
    """One attempt; whether it got through the handshake. It has reached the socket in any case."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    if own is not None:
        socket.setsockopt(zmq.CURVE_PUBLICKEY, own.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
    events = socket.get_monitor_socket(zmq.EVENT_CONNECTED | FAILURES | OVER)
    socket.connect(f"tcp://127.0.0.1:{port}")
    with suppress(zmq.Again):  # it is refused already
        socket.send(b"let me in", zmq.NOBLOCK)
    seen: list[int] = []
    while not seen or not seen[-1] & OVER:
        assert events.poll(PATIENCE_S * 1e3), seen
        seen.append(parse_monitor_message(events.recv_multipart())["event"])
    assert seen[0] == zmq.EVENT_CONNECTED
    socket.disable_monitor()
    events.close(0)
    socket.close(0)
    return bool(seen[-1] == zmq.EVENT_HANDSHAKE_SUCCEEDED)


def ports_of(pid: int) -> list[int]:
    """Where a process listens."""
    return [each.laddr.port for each in psutil.Process(pid).net_connections("tcp") if each.status == "LISTEN"]


def refused(baton: BatonProcess) -> dict[str, int]:
    """Connections refused by each socket, by `process reason`, as the metrics say."""
    text = baton.http.get("/metrics").text
    found = {}
    pattern = r'^baton_connections_refused_total{model_name="\w+",reason="(\w+)"} (\d+)'
    for reason, count in re.findall(pattern, text, re.MULTILINE):
        found[f"gateway {reason}"] = int(count)
    pattern = r'^baton_worker_refused_connections_(\w+)_total{model_name="\w+",role="(\w+)",worker="[^"]+"} (\d+)'
    for reason, role, count in re.findall(pattern, text, re.MULTILINE):
        found[f"{role} {reason}"] = int(count)
    return found


def test_strangers_are_refused_at_every_socket(keys: Path, context: Any, tmp_path: Path) -> None:
    """One pair as on three hosts, each with its own key; KV as encrypted frames."""
    with ExitStack() as stack:
        flags = ["--port", "0", "--keys", str(keys / "gateway")]
        gateway = stack.enter_context(BatonProcess("gateway", *flags, log=tmp_path / "gateway.log"))
        control = int(re.findall(r"workers dial tcp://127.0.0.1:(\d+)\.", gateway.ready)[0])
        for role in ("prefill", "decode"):
            flags = f"--role {role} --gateway tcp://127.0.0.1:{control} --transfer-backend zmq --encrypt-data".split()
            flags += ["--max-total-tokens", "4096", "--keys", str(keys / f"{role}-host")]
            stack.enter_context(BatonProcess("worker", *flags, log=tmp_path / f"{role}.log"))
        before = gateway.complete(model="story", prompt="Once upon a time", max_tokens=8, temperature=0)
        pids = {each["role"]: each["pid"] for each in gateway.workers()}
        (peer,), (data,) = ports_of(pids["prefill"]), ports_of(pids["decode"])
        doors = (
            ("gateway", "gateway", zmq.DEALER, control),
            ("prefill", "prefill-host", zmq.DEALER, peer),
            ("decode", "decode-host", zmq.PUSH, data),
        )
        assert gateway.wait_until(lambda: len(refused(gateway)) == 6)
        unlisted, listed = read_keys(tmp_path / "foreign/worker"), read_keys(keys / "prefill-host")
        for who, owner, kind, port in doors:
            already = refused(gateway)
            assert already == {**already, f"{who} key": 0, f"{who} handshake": 0}
            server = read_keys(keys / owner).public
            assert not try_to_connect(context, kind, port, None, "")
            assert not try_to_connect(context, kind, port, unlisted, server)
            assert not try_to_connect(context, kind, port, listed, unlisted.public)
            expected = {**already, f"{who} key": 1, f"{who} handshake": 2}
            assert gateway.wait_until(lambda expected=expected: refused(gateway) == expected), refused(gateway)  # type: ignore[misc]
            assert try_to_connect(context, kind, port, listed, server)
        assert len(gateway.workers()) == 2
        after = gateway.complete(model="story", prompt="Once upon a time", max_tokens=8, temperature=0)
        assert after["choices"] == before["choices"]
        for each in ("gateway", "prefill", "decode"):
            text = (tmp_path / f"{each}.log").read_text()
            assert f"kind=key count=1 address=127.0.0.1 public_key={unlisted.public}" in text.replace('"', "")


@pytest.mark.parametrize("extra", [["--encrypt-data"], broad([])])
def test_one_command_serves_with_keys(fake_folder: Path, keys: Path, tmp_path: Path, extra: list[str]) -> None:
    flags = ["--port", "0", "--max-total-tokens", "4800", "--transfer-backend", "zmq", "--keys", str(keys / "gateway")]
    with BatonProcess(str(fake_folder), *flags, *extra, log=tmp_path / "log", program=FAKE) as baton:
        prompts = [[index, *range(150)] for index in range(4)]
        assert [baton.tokens(prompt, max_tokens=20, temperature=0) for prompt in prompts] == [
            RUNNER.expected_tokens(prompt, 20) for prompt in prompts
        ]
        assert baton.wait_for_rest()
        assert set(refused(baton).values()) == {0}


@pytest.mark.broad
def test_a_worker_with_a_wrong_key_is_told_at_once_and_joins_once_that_is_mended(keys: Path, tmp_path: Path) -> None:
    """Its folder is right but for one thing: the gateway's list lacks its key."""
    listed = keys / "gateway/allowed/decode-host.key"
    kept = listed.rename(tmp_path / "kept.key")
    log = tmp_path / "decode.log"
    ended = threading.Event()

    def mend() -> None:
        while not ended.wait(0.05):
            if log.exists() and "the gateway refuses this worker" in log.read_text():
                kept.rename(listed)
                return

    mending = threading.Thread(target=mend)
    flags = ["--port", "0", "--keys", str(keys / "gateway")]
    with BatonProcess("gateway", *flags, log=tmp_path / "gateway.log") as gateway:
        control = re.findall(r"workers dial (tcp://127.0.0.1:\d+)\.", gateway.ready)[0]
        worker = ["worker", "--role", "decode", "--gateway", control, "--keys", str(keys / "decode-host")]
        mending.start()
        try:
            with BatonProcess(*worker, "--max-total-tokens", "4096", log=log):
                assert [each["role"] for each in gateway.workers()] == ["decode"]
        finally:
            ended.set()
            mending.join()
    text = log.read_text()
    assert text.count("the gateway refuses this worker") == 1
    assert read_keys(keys / "decode-host").public in text
    assert (tmp_path / "gateway.log").read_text().count("connection refused") == 1
