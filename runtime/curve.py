"""CURVE on ZeroMQ sockets: a bound socket accepts only the public keys on a list.

    bound     security.prepare_bind(socket)             refuses strangers in the handshake, counts and logs them
    dialling  security.prepare_dial(socket, address)   requires the peer to hold the key that the address names

The address of a guarded socket is `tcp://HOST:PORT;KEY`, that of any other `tcp://HOST:PORT`. libzmq and pyzmq do the
cryptography. Without a list, or without the thread that reads it, a guarded socket accepts no connection.
"""

import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import parse_monitor_message

from protocol.errors import ConfigError, WireError, brief
from runtime.keys import ALLOWED, Keys, allowed_in, is_key
from runtime.log import EventLog, Refusals

UNKNOWN_KEY, NO_HANDSHAKE = "key", "handshake"  # why a connection was refused
MARK = ";"  # between an endpoint and a key; no key contains it
OVERHEAD_BYTES = 33  # for each encrypted part of a message: a name, a nonce, a flag, a sum
PLAIN_MARK = ";plain="  # in the address of an unencrypted data socket: between the endpoint and its secret
_DOMAIN, _DATA_DOMAIN = "baton", "baton data"
_FAILURES = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

Socket = zmq.Socket[Any]


class Security:
    """Prepares the sockets of a process before they are bound or dialled. This one is of a process without keys: any
    process may connect. Subclasses are of a process with keys."""

    def refused(self) -> Mapping[str, int]:
        """Connections that bound sockets have refused, by reason; empty without keys. Also counts and logs new ones, so
        call it a few times a second."""
        return {}

    def prepare_bind(self, socket: Socket) -> str:
        """Prepares a socket that will be bound. Returns the suffix of its address after the endpoint."""
        return ""

    def prepare_dial(self, socket: Socket, address: str) -> str:
        """Prepares a socket that will dial `address`. Returns the endpoint. WireError if it may not dial there: without
        keys, to a guarded socket."""
        endpoint, key = split_address(address)
        if key:
            raise WireError(f"address {endpoint!r} needs a key, and this process has none (--keys)")
        return endpoint

    def close(self) -> None:
        """Accepts no more connections. Call it after closing the sockets and before their context ends. Idempotent."""


OPEN: Final = Security()


class Curve(Security):
    """The Security of a process with keys, for the sockets of one context. Used by one thread."""

    def __init__(self, keys: Keys, context: "zmq.Context[Any]", log: EventLog) -> None:
        self._keys = keys
        self._context = context
        self._refusals = Refusals(log, "connection refused")
        self._refusals.counts.update({UNKNOWN_KEY: 0, NO_HANDSHAKE: 0})  # two threads count, each its own kind
        self._doorkeeper = _Doorkeeper(context, keys.folder, self._refusals)
        self._doorkeeper.configure_curve_callback(_DOMAIN, self._doorkeeper)
        self._doorkeeper.start()
        self._failures: list[Socket] = []  # one monitor for each guarded socket: reports failed handshakes

    def refused(self) -> Mapping[str, int]:
        """See Security."""
        assert self._doorkeeper.is_alive(), "no connection is admitted: the thread that checks keys has ended"
        for failures in self._failures:
            self._count(failures)
        return self._refusals.counts

    def prepare_bind(self, socket: Socket) -> str:
        """See Security."""
        self._set_pair(socket)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        self._guard(socket, _DOMAIN, _FAILURES)
        return MARK + self._keys.public

    def guard_by_secret(self, socket: Socket) -> str:
        """Prepares a socket that accepts peers who send a new random secret in the handshake, in clear text (PLAIN).
        Returns the suffix of its address. Send that address over encrypted connections only."""
        secret = secrets.token_hex(16)
        self._doorkeeper.secrets.add(secret)
        socket.setsockopt(zmq.PLAIN_SERVER, 1)
        self._guard(socket, _DATA_DOMAIN, _FAILURES | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        return PLAIN_MARK + secret

    def _guard(self, socket: Socket, domain: str, events: int) -> None:
        """Lets the doorkeeper decide, in `domain`, about each connection; monitors the `events` that _count() reads."""
        socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # otherwise, without the thread, any process would be accepted
        address = f"inproc://failed-handshakes-{id(self)}-{len(self._failures)}"
        socket.monitor(address, events)
        failures = self._context.socket(zmq.PAIR)
        failures.setsockopt(zmq.LINGER, 0)
        failures.setsockopt(zmq.RCVHWM, 0)  # libzmq's thread must never wait for us
        failures.connect(address)
        self._failures.append(failures)

    def prepare_dial(self, socket: Socket, address: str) -> str:
        """See Security. The address must name the gateway's key or one on the list."""
        endpoint, key = split_address(address)
        if not key:
            raise WireError(
                f"address {endpoint!r} names no key, so its socket does not encrypt; expected one that does"
                " (--keys; for KV, --encrypt-data at both ends)"
            )
        if key != self._keys.gateway and owner_of(key, self._keys.folder)[0] is None:
            raise WireError(
                f"address {endpoint!r} names the key {brief(key)}, which is not among {self._keys.folder / ALLOWED}"
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
            socket.setsockopt(zmq.MAXMSGSIZE, most + OVERHEAD_BYTES)  # the option limits encrypted bytes
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret.encode())

    def _count(self, failures: Socket) -> None:
        while failures.poll(0):
            event = parse_monitor_message(failures.recv_multipart())["event"]
            if event & (_FAILURES | zmq.EVENT_HANDSHAKE_FAILED_AUTH):
                reason = "no encryption, a wrong secret, a wrong key of this process, or an early end"
                self._refusals.note(NO_HANDSHAKE, why=reason)


class AsPeersAsk(Security):
    """The Security of the data plane of a process with keys, where data need not be encrypted. Its own socket asks for
    a secret; it dials a peer in the peer's way. The owner of `curve` closes it."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve

    def prepare_bind(self, socket: Socket) -> str:
        """See Curve.guard_by_secret."""
        return self._curve.guard_by_secret(socket)

    def prepare_dial(self, socket: Socket, address: str) -> str:
        """See Security."""
        endpoint, mark, secret = address.partition(PLAIN_MARK)
        if mark:
            socket.setsockopt(zmq.PLAIN_USERNAME, b"kv")
            socket.setsockopt(zmq.PLAIN_PASSWORD, secret.encode())
            return endpoint
        return (self._curve if split_address(address)[1] else OPEN).prepare_dial(socket, address)


def owner_of(key: str, folder: Path) -> tuple[str | None, str]:
    """The name of the key's owner; None and why for a key that may not connect. The files are read at each question, so
    changes count at once. If one file holds no key, or other users may change it, every key is refused."""
    try:
        name = allowed_in(folder).get(key)
    except (OSError, ConfigError) as error:
        return None, str(error)
    return name, "" if name is not None else "not allowed"


class _Doorkeeper(ThreadAuthenticator):
    """Answers libzmq, in its own thread, whether the key of a new connection is on the list."""

    def __init__(self, context: "zmq.Context[Any]", folder: Path, refusals: Refusals) -> None:
        super().__init__(context)
        self._folder = folder
        self._refusals = refusals
        self.secrets: set[str] = set()  # of data sockets
        self._asking = ""  # the address of the connection that is being checked

    async def handle_zap_message(self, msg: list[bytes]) -> None:
        """Answers one question. RFC 27 of ZeroMQ describes its parts."""
        self._asking = msg[3].decode("ascii", "replace") if len(msg) > 3 else ""
        await super().handle_zap_message(msg)

    def _authenticate_plain(self, domain: str, username: str, password: str) -> tuple[bool, bytes]:
        """Replaces pyzmq's check, whose time tells how much of a password is right."""
        given = password.encode()
        is_right = any(hmac.compare_digest(given, secret.encode()) for secret in self.secrets)
        return domain == _DATA_DOMAIN and is_right, b"" if is_right else b"wrong secret"

    def stop(self) -> None:
        """Ends the thread."""
        if self.pipe is not None and not self.is_alive():  # the thread has died and would not read the request to end
            self.pipe.close(0)
            self.pipe = None  # type: ignore[assignment]  # as its own stop() does
        super().stop()

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by pyzmq to check a key."""
        text = key.decode("ascii")
        name, reason = owner_of(text, self._folder)
        if name is None:
            self._refusals.note(UNKNOWN_KEY, address=self._asking, public_key=text, why=reason)
        return name is not None


def without_secret(address: str) -> str:
    """The address without its secret, as strangers may see it."""
    return address.partition(PLAIN_MARK)[0]


def split_address(address: str) -> tuple[str, str]:
    """(endpoint, key) of an address; the key is "" for an open socket. WireError if the key is not a key."""
    endpoint, mark, key = address.partition(MARK)
    if mark and not is_key(key):
        raise WireError(f"address {brief(address)}: expected tcp://HOST:PORT{MARK}KEY, with a key of 40 characters")
    return endpoint, key


def open_security(keys: Keys | None, context: "zmq.Context[Any]", log: EventLog) -> Security:
    """The Security for these keys; OPEN for None."""
    return OPEN if keys is None else Curve(keys, context, log)


def security_of_data(control: Security, *, encrypt: bool) -> Security:
    """The Security of the data plane. `control` is that of the process's other sockets."""
    return AsPeersAsk(control) if isinstance(control, Curve) and not encrypt else control
