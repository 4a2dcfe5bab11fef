"""Who may connect: CURVE on ZeroMQ sockets, with a list of the public keys that a bound socket takes.

    bound     security.guard(socket)             strangers end in the handshake: counted, logged now and then
    dialling  security.unlock(socket, address)   whoever answers must hold the key that the address names

The address of a guarded socket is `tcp://HOST:PORT;KEY`, that of any other `tcp://HOST:PORT`. libzmq and pyzmq do the
cryptography; without a list, or without the thread that looks into it, they take nobody. What it does not know: files
(keys.py), what is said on a socket.
"""

import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import parse_monitor_message

from protocol.brief import brief
from protocol.errors import ConfigError, WireError
from runtime.keys import ALLOWED, Keys, allowed_in, is_key
from runtime.link_watch import NO_HANDSHAKE, UNKNOWN_KEY
from runtime.log import EventLog
from runtime.refusals import Refusals

MARK = ";"  # between an endpoint and a key; no key has it
OVERHEAD_BYTES = 33  # of each encrypted part of a message: a name, a nonce, a flag, a sum
PLAIN_MARK = ";plain="  # between the endpoint of a data socket that is not encrypted and the secret that it asks for
_DOMAIN, _DATA_DOMAIN = "baton", "baton data"
_FAILURES = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

Socket = zmq.Socket[Any]


class Security(Protocol):
    """What a process does to its sockets before it binds or dials."""

    def refused(self) -> Mapping[str, int]:
        """Connections that bound sockets have refused, by reason; empty without keys. Looks for new ones and logs them:
        to be called a few times a second."""
        ...

    def guard(self, socket: Socket) -> str:
        """Prepares a socket that is to be bound; returns what its address ends in, beyond the endpoint."""
        ...

    def unlock(self, socket: Socket, address: str) -> str:
        """Prepares a socket that is to dial `address`; returns the endpoint. WireError where that may not be."""
        ...

    def close(self) -> None:
        """Takes nobody any more. Call it when the sockets are closed, before their context ends. Idempotent."""
        ...


class Open:
    """The Security of a process without keys: anybody may connect."""

    def refused(self) -> Mapping[str, int]:
        """Nobody."""
        return {}

    def guard(self, socket: Socket) -> str:
        """Nothing to do."""
        return ""

    def unlock(self, socket: Socket, address: str) -> str:
        """WireError for the address of a guarded socket."""
        endpoint, key = split_address(address)
        if key:
            raise WireError(f"address {endpoint!r} is for those who have keys, and this process has none (--keys)")
        return endpoint

    def close(self) -> None:
        """Nothing to do."""


OPEN: Final = Open()


class Curve:
    """The Security of a process with keys, for the sockets of one context; used by one thread."""

    def __init__(self, keys: Keys, context: "zmq.Context[Any]", log: EventLog) -> None:
        self._keys = keys
        self._context = context
        self._refusals = Refusals(log, "connection refused")
        self._refusals.counts.update({UNKNOWN_KEY: 0, NO_HANDSHAKE: 0})  # two threads count, each its own
        self._allowed = AllowList(keys.folder)
        self._doorkeeper = _Doorkeeper(context, self._allowed, self._refusals)
        self._doorkeeper.configure_curve_callback(_DOMAIN, self._doorkeeper)
        self._doorkeeper.start()
        self._failures: list[Socket] = []  # one for each guarded socket: it tells of handshakes that failed

    def refused(self) -> Mapping[str, int]:
        """See Security."""
        assert self._doorkeeper.is_alive(), "nobody is admitted any more"
        for failures in self._failures:
            self._count(failures)
        return self._refusals.counts

    def guard(self, socket: Socket) -> str:
        """See Security."""
        self._set_pair(socket)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # else, were nobody there to ask, anybody would be let in
        self._watch(socket, _FAILURES)
        return MARK + self._keys.public

    def guard_by_secret(self, socket: Socket) -> str:
        """Prepares a socket that takes whoever tells a new random secret in the handshake, in clear text (PLAIN).
        Returns what its address ends in: such an address is told on encrypted connections only."""
        secret = secrets.token_hex(16)
        self._doorkeeper.secrets.add(secret)
        socket.setsockopt(zmq.PLAIN_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DATA_DOMAIN.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._watch(socket, _FAILURES | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        return PLAIN_MARK + secret

    def _watch(self, socket: Socket, events: int) -> None:
        address = f"inproc://failed-handshakes-{id(self)}-{len(self._failures)}"
        socket.monitor(address, events)
        failures = self._context.socket(zmq.PAIR)
        failures.setsockopt(zmq.LINGER, 0)
        failures.setsockopt(zmq.RCVHWM, 0)  # the transport's thread never waits for us
        failures.connect(address)
        self._failures.append(failures)

    def unlock(self, socket: Socket, address: str) -> str:
        """See Security: the address must name the gateway's key, or one on the list."""
        endpoint, key = split_address(address)
        if not key:
            raise WireError(
                f"address {endpoint!r} names no key: who listens there does not encrypt, and this process dials only"
                " who does (--keys; for KV, --encrypt-data at both ends)"
            )
        if key != self._keys.gateway and self._allowed.name_of(key) is None:
            raise WireError(
                f"address {endpoint!r} names the key {brief(key)}, which is not among {self._allowed.folder}"
            )
        self._set_pair(socket)
        socket.setsockopt(zmq.CURVE_SERVERKEY, key.encode())
        return endpoint

    def close(self) -> None:
        """See Security."""
        self._doorkeeper.stop()
        for failures in self._failures:
            failures.close(0)
        self._failures.clear()

    def _set_pair(self, socket: Socket) -> None:
        most = socket.getsockopt(zmq.MAXMSGSIZE)
        if isinstance(most, int) and most >= 0:
            socket.setsockopt(zmq.MAXMSGSIZE, most + OVERHEAD_BYTES)  # it bounds what arrives, not what is in it
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret.encode())

    def _count(self, failures: Socket) -> None:
        while failures.poll(0):
            event = parse_monitor_message(failures.recv_multipart())["event"]
            if event & (_FAILURES | zmq.EVENT_HANDSHAKE_FAILED_AUTH):
                why = "no CURVE or no secret, another key of ours, a wrong secret, or gone before it was over"
                self._refusals.note(NO_HANDSHAKE, why=why)


class AsPeersAsk:
    """The Security of the data plane of a process with keys where it need not be encrypted: its own socket asks for a
    secret, and it dials whatever the peer has. `curve` stays its owner's."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve

    def refused(self) -> Mapping[str, int]:
        """Nobody."""
        return {}

    def guard(self, socket: Socket) -> str:
        """See Curve.guard_by_secret."""
        return self._curve.guard_by_secret(socket)

    def unlock(self, socket: Socket, address: str) -> str:
        """See Security."""
        endpoint, mark, secret = address.partition(PLAIN_MARK)
        if mark:
            socket.setsockopt(zmq.PLAIN_USERNAME, b"kv")
            socket.setsockopt(zmq.PLAIN_PASSWORD, secret.encode())
            return endpoint
        return (self._curve if split_address(address)[1] else OPEN).unlock(socket, address)

    def close(self) -> None:
        """Nothing to do."""


class AllowList:
    """The keys that may connect, read for each question: files that come, go or change count at once. One that is no
    key, or that others may change, makes the list empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / ALLOWED
        self._keys_folder = folder
        self.trouble = ""  # why the list is empty

    def name_of(self, key: str) -> str | None:
        """Whose key it is; None for a stranger's."""
        try:
            names, self.trouble = allowed_in(self._keys_folder), ""
        except (OSError, ConfigError) as error:
            names, self.trouble = {}, str(error)
        return names.get(key)


class _Doorkeeper(ThreadAuthenticator):
    """Answers libzmq, in a thread of its own, for each connection to a guarded socket: is this key on the list?"""

    def __init__(self, context: "zmq.Context[Any]", allowed: AllowList, refusals: Refusals) -> None:
        super().__init__(context)
        self._list = allowed
        self._refusals = refusals
        self.secrets: set[str] = set()  # of data sockets
        self._asking = ""  # the address of who connects now

    async def handle_zap_message(self, msg: list[bytes]) -> None:
        """One question; see RFC 27 of ZeroMQ for its parts."""
        self._asking = msg[3].decode("ascii", "replace") if len(msg) > 3 else ""
        await super().handle_zap_message(msg)

    def _authenticate_plain(self, domain: str, username: str, password: str) -> tuple[bool, bytes]:
        """In place of pyzmq's, which takes less time the sooner a password differs."""
        given = password.encode()
        is_right = any(hmac.compare_digest(given, secret.encode()) for secret in self.secrets)
        return domain == _DATA_DOMAIN and is_right, b"" if is_right else b"wrong secret"

    def stop(self) -> None:
        """Ends the thread."""
        if self.pipe is not None and not self.is_alive():  # it has died: nobody would hear that it is to end
            self.pipe.close(0)
            self.pipe = None  # type: ignore[assignment]  # as its own stop() does
        super().stop()

    def callback(self, domain: str, key: bytes) -> bool:
        """What pyzmq asks of whoever knows the keys."""
        text = key.decode("ascii")
        if self._list.name_of(text) is not None:
            return True
        self._refusals.note(UNKNOWN_KEY, address=self._asking, public_key=text, why=self._list.trouble or "not allowed")
        return False


def without_secret(address: str) -> str:
    """An address as strangers may see it."""
    return address.partition(PLAIN_MARK)[0]


def split_address(address: str) -> tuple[str, str]:
    """(endpoint, key) of an address; the key is "" where the socket is open. WireError for what is no key."""
    endpoint, mark, key = address.partition(MARK)
    if mark and not is_key(key):
        raise WireError(f"address {brief(address)}: expected tcp://HOST:PORT{MARK}KEY, with a key of 40 characters")
    return endpoint, key


def open_security(keys: Keys | None, context: "zmq.Context[Any]", log: EventLog) -> Security:
    """What suits `keys`."""
    return OPEN if keys is None else Curve(keys, context, log)


def security_of_data(control: Security, *, encrypt: bool) -> Security:
    """The Security of the data plane, beside that of the other sockets of the process."""
    return AsPeersAsk(control) if isinstance(control, Curve) and not encrypt else control
