"""Who gets through to a guarded socket, over real connections; and that nobody else harms or is overlooked."""

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from deploy.keys import new, revoke
from protocol.errors import WireError
from runtime.bus import bind_on_host
from runtime.curve import (
    OPEN,
    PLAIN_MARK,
    AsPeersAsk,
    Curve,
    open_security,
    owner_of,
    security_of_data,
    split_address,
    without_secret,
)
from runtime.keys import read_keys
from runtime.log import get_log

log = get_log("test")
PATIENCE_MS = 120_000  # for what should take milliseconds
KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"  # the example of RFC 32 of ZeroMQ


class Net:
    """Processes with keys, each with a context of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ending: list[Callable[[], None]] = []

    def process(self, name: str, folder: Path | None = None) -> tuple[Any, Curve]:
        context: Any = zmq.Context()
        curve = Curve(read_keys((folder or self.folder) / name), context, log)
        self._ending.append(lambda: end(context, curve))
        return context, curve

    def stranger(self) -> Any:
        context: Any = zmq.Context()
        self._ending.append(lambda: context.destroy(linger=0))
        return context

    def bound(self, context: Any, curve: Curve, kind: int = zmq.ROUTER, max_bytes: int = -1) -> tuple[Any, str]:
        socket = self._socket(context, kind)
        socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        suffix = curve.prepare_bind(socket)
        socket.bind("tcp://127.0.0.1:0")
        return socket, socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode() + suffix

    def dial(self, context: Any, security: Any, address: str, kind: int = zmq.DEALER) -> Any:
        socket = self._socket(context, kind)
        socket.setsockopt(zmq.RECONNECT_IVL, 600_000)  # one attempt, so that it can be counted
        socket.connect(security.prepare_dial(socket, address))
        with contextlib.suppress(zmq.Again):  # a refusal may come first, and then nobody is there to send to
            socket.send(b"hello", zmq.NOBLOCK)
        return socket

    def close(self) -> None:
        for ending in reversed(self._ending):
            ending()

    def _socket(self, context: Any, kind: int) -> Any:
        socket = context.socket(kind)
        self._ending.append(lambda: socket.close(0))
        return socket


def end(context: Any, curve: Curve) -> None:
    curve.close()
    curve.close()
    context.destroy(linger=0)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    new(tmp_path / "keys", ["a", "b"])
    made = Net(tmp_path / "keys")
    yield made
    made.close()


def wait_for(curve: Curve, reason: str, count: int) -> None:
    pause, tries = threading.Event(), PATIENCE_MS // 10
    assert any(curve.refused()[reason] >= count or pause.wait(0.01) for _ in range(tries)), curve.refused()
    assert curve.refused()[reason] == count


def test_who_is_on_the_list_gets_through_both_ways(net: Net) -> None:
    (here, ours), (there, theirs) = net.process("a"), net.process("b")
    router, address = net.bound(here, ours)
    assert split_address(address) == (address.partition(";")[0], read_keys(net.folder / "a").public)
    dealer = net.dial(there, theirs, address)
    assert router.poll(PATIENCE_MS)
    name, said = router.recv_multipart()
    router.send_multipart([name, b"welcome"])
    assert dealer.poll(PATIENCE_MS) and (said, dealer.recv()) == (b"hello", b"welcome")
    assert ours.refused() == {"key": 0, "handshake": 0}


@pytest.mark.parametrize("kind, dialling", [(zmq.ROUTER, zmq.DEALER), (zmq.PULL, zmq.PUSH)])
def test_strangers_end_in_the_handshake_and_are_counted(net: Net, tmp_path: Path, kind: int, dialling: int) -> None:
    new(tmp_path / "foreign", ["a"])
    (here, ours), (there, theirs) = net.process("a"), net.process("b")
    socket, address = net.bound(here, ours, kind)
    endpoint, key = split_address(address)
    net.dial(net.stranger(), OPEN, endpoint, dialling)  # speaks no CURVE
    wait_for(ours, "handshake", 1)
    foreign_context, foreign = net.process("a", tmp_path / "foreign")
    shutil.copy(net.folder / "a/allowed/a.key", tmp_path / "foreign/a/allowed/target.key")
    net.dial(foreign_context, foreign, address, dialling)  # has a key, but not one that is known
    wait_for(ours, "key", 1)
    shutil.copy(tmp_path / "foreign/gateway/allowed/a.key", net.folder / "b/allowed/target.key")
    net.dial(there, theirs, f"{endpoint};{foreign._keys.public}", dialling)  # takes us for somebody else
    wait_for(ours, "handshake", 2)
    assert ours.refused() == {"key": 1, "handshake": 2}
    assert not socket.poll(0)
    net.dial(there, theirs, f"{endpoint};{key}", dialling)
    assert socket.poll(PATIENCE_MS) and socket.recv_multipart()[-1] == b"hello"


def test_the_list_counts_as_it_is_now(net: Net) -> None:
    (here, ours), (there, theirs) = net.process("gateway"), net.process("b")
    router, address = net.bound(here, ours)
    first = net.dial(there, theirs, address)
    assert router.poll(PATIENCE_MS) and router.recv_multipart()
    revoke(net.folder, "b")
    net.dial(there, theirs, address)
    wait_for(ours, "key", 1)
    first.send(b"still here", zmq.NOBLOCK)  # as the documentation says
    assert router.poll(PATIENCE_MS) and router.recv_multipart()[-1] == b"still here"
    assert not router.poll(0)


def test_without_its_thread_a_guarded_socket_takes_nobody_and_still_closes(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: died.set())
    (here, ours), (there, theirs) = net.process("a"), net.process("b")
    router, address = net.bound(here, ours)
    monkeypatch.setattr(ours._doorkeeper, "callback", lambda _domain, _key: 1 / 0)
    net.dial(there, theirs, address)
    assert died.wait(PATIENCE_MS / 1e3)
    ours._doorkeeper.zap_socket.close(0)  # as at the end of a process, some time later
    (failures,) = ours._failures
    for _ in range(PATIENCE_MS // 200):
        net.dial(there, theirs, address)
        if failures.poll(200):
            break
    else:
        raise AssertionError("nobody was refused")
    assert not router.poll(0)
    with pytest.raises(AssertionError, match="no connection is admitted"):
        ours.refused()


def test_an_unreadable_list_admits_nobody_until_it_is_mended(net: Net) -> None:
    folder = net.folder / "a"
    key = read_keys(net.folder / "b").public
    assert owner_of(key, folder) == ("b", "") and owner_of(KEY, folder) == (None, "not allowed")
    (net.folder / "a/allowed/half.key").write_text("# to be conti")
    name, why = owner_of(key, folder)
    assert name is None and "half.key': it is not a key file" in why
    (net.folder / "a/allowed/half.key").unlink()
    assert owner_of(key, folder) == ("b", "")
    (net.folder / "a/allowed/b.key").chmod(0o606)
    name, why = owner_of(key, folder)
    assert name is None and "b.key': others may change it (mode 606)" in why
    (net.folder / "a/allowed/b.key").chmod(0o644)
    assert owner_of(key, folder) == ("b", "")
    shutil.rmtree(net.folder / "a/allowed")
    name, why = owner_of(key, folder)
    assert name is None and "No such file" in why


def test_a_file_that_was_written_over_admits_the_new_key_and_not_the_old_one(net: Net, tmp_path: Path) -> None:
    new(tmp_path / "later", ["b"])
    keys = [read_keys(folder / "b").public for folder in (net.folder, tmp_path / "later")]
    assert [owner_of(key, net.folder / "a")[0] for key in keys] == ["b", None]
    shutil.copyfile(tmp_path / "later/b/allowed/b.key", net.folder / "a/allowed/b.key")
    assert [owner_of(key, net.folder / "a")[0] for key in keys] == [None, "b"]


def test_only_who_is_known_is_dialled(net: Net, tmp_path: Path) -> None:
    context, curve = net.process("a")
    with context.socket(zmq.DEALER) as socket:
        with pytest.raises(WireError, match="'tcp://h:1' names no key, so its socket does not encrypt"):
            curve.prepare_dial(socket, "tcp://h:1")
        with pytest.raises(WireError, match=r"names the key .*, which is not among "):
            curve.prepare_dial(socket, f"tcp://h:1;{KEY}")
        with pytest.raises(WireError, match="needs a key, and this process has none"):
            OPEN.prepare_dial(socket, f"tcp://h:1;{KEY}")
        for address in ("tcp://h:1;", "tcp://h:1;short", f"tcp://h:1;{KEY};{KEY}"):
            with pytest.raises(WireError, match="expected tcp://HOST:PORT;KEY"):
                curve.prepare_dial(socket, address)
        assert OPEN.prepare_dial(socket, "tcp://h:1") == "tcp://h:1"


def test_data_may_be_open_beside_a_guarded_control_plane(net: Net) -> None:
    context, curve = net.process("a")
    assert security_of_data(curve, encrypt=True) is curve
    assert security_of_data(OPEN, encrypt=False) is OPEN
    data = security_of_data(curve, encrypt=False)
    assert isinstance(data, AsPeersAsk) and data.refused() == {}
    with context.socket(zmq.PUSH) as socket:
        assert data.prepare_dial(socket, "tcp://h:1") == "tcp://h:1"
        known = read_keys(net.folder / "b").public
        assert data.prepare_dial(socket, f"tcp://h:1;{known}") == "tcp://h:1"
        assert socket.getsockopt(zmq.MECHANISM) == zmq.CURVE
        with pytest.raises(WireError, match="not among"):
            data.prepare_dial(socket, f"tcp://h:1;{KEY}")


@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_stranger_at_an_unencrypted_data_socket_delivers_no_part_of_a_message(net: Net, password: str | None) -> None:
    (here, ours), (there, theirs) = net.process("a"), net.process("b")
    data = security_of_data(ours, encrypt=False)
    pull = here.socket(zmq.PULL)
    pull.setsockopt(zmq.LINGER, 0)
    pull.setsockopt(zmq.MAXMSGSIZE, 5000)
    address = bind_on_host(pull, "127.0.0.1", data)
    endpoint = without_secret(address)
    assert address.startswith(f"{endpoint}{PLAIN_MARK}") and len(address) > len(endpoint) + 32

    # A message of many parts, which libzmq would gather without a bound, from one who does not know the secret.
    stranger = net.stranger().socket(zmq.PUSH)
    stranger.setsockopt(zmq.LINGER, 0)
    stranger.setsockopt(zmq.SNDHWM, 0)
    stranger.setsockopt(zmq.RECONNECT_IVL, 600_000)  # one attempt, so that it can be counted
    if password is not None:
        stranger.setsockopt(zmq.PLAIN_USERNAME, b"kv")
        stranger.setsockopt(zmq.PLAIN_PASSWORD, password.encode())
    stranger.connect(endpoint)
    with contextlib.suppress(zmq.Again):  # a refusal may come first, and then nobody is there to send to
        for _ in range(200):
            stranger.send(bytes(5000), zmq.SNDMORE | zmq.NOBLOCK)
        stranger.send(b"the last part", zmq.NOBLOCK)
    wait_for(ours, "handshake", 1)
    assert not pull.poll(0)

    # Who knows it goes on.
    push = there.socket(zmq.PUSH)
    push.setsockopt(zmq.LINGER, 0)
    push.connect(security_of_data(theirs, encrypt=False).prepare_dial(push, address))
    push.send_multipart([b"header", bytes(5000)])
    assert pull.poll(PATIENCE_MS) and pull.recv_multipart() == [b"header", bytes(5000)]
    assert not pull.poll(0)
    for socket in (stranger, push, pull):
        socket.close(0)


def test_encryption_takes_nothing_from_what_a_message_may_hold(net: Net) -> None:
    (here, ours), (there, theirs) = net.process("a"), net.process("b")
    pull, address = net.bound(here, ours, zmq.PULL, max_bytes=5000)
    push = net.dial(there, theirs, address, zmq.PUSH)
    push.send_multipart([bytes(5000), bytes(5000)])
    for expected in ([b"hello"], [bytes(5000), bytes(5000)]):
        assert pull.poll(PATIENCE_MS) and pull.recv_multipart() == expected
    watch = push.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    push.send(bytes(5001))
    assert watch.poll(PATIENCE_MS) and not pull.poll(0)
    push.disable_monitor()
    watch.close(0)


def test_without_keys_nothing_is_done() -> None:
    security = open_security(None, zmq.Context.instance(), log)
    assert security is OPEN and security.refused() == {}
    context: Any = zmq.Context.instance()
    with context.socket(zmq.ROUTER) as socket:
        assert security.prepare_bind(socket) == ""
    security.close()
