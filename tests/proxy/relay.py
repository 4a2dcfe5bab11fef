"""Stands between workers and the gateway: passes everything on, and puts gates of the proxy where addresses are told.

A worker tells the gateway where it listens (Register), and a decode worker tells prefill (Hello). What it does not
know: faults.
"""

import contextlib
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import zmq

from protocol.messages_gateway import TO_GATEWAY, RankEndpoint, Register, WorkerAddress
from protocol.messages_handoff import TO_PREFILL, Hello
from runtime.session import ENVELOPE_BYTES, open_envelope
from tests.proxy.proxy import Proxy
from tests.proxy.zmtp import Parts


def behind_gates(address: WorkerAddress, proxy: Proxy) -> WorkerAddress:
    """Where others are to dial."""
    name, instance = address.worker_id, address.instance
    hello = partial(with_gate_in_hello, proxy)
    peer = proxy.before(address.peer, f"peer {name}", instance, hello) if address.peer else ""
    ranks = tuple(RankEndpoint(proxy.before(rank.data, f"data {name}", instance)) for rank in address.ranks)
    return replace(address, peer=peer, ranks=ranks)


def with_gate_in_hello(proxy: Proxy, message: Parts) -> Parts:
    """A Hello with the gate of the decode worker that greets, which has registered; anything else as it is."""
    if b"Hello" not in message[-1][: ENVELOPE_BYTES + 16]:
        return message
    envelope = open_envelope(message[-1])
    hello = TO_PREFILL.decode(envelope.body)
    assert isinstance(hello, Hello)
    address = replace(hello.address, ranks=(RankEndpoint(proxy.known(hello.address.data)),))
    return (*message[:-1], envelope._replace(body=TO_PREFILL.encode(replace(hello, address=address))).sealed())


class Relay:
    """A ROUTER for the workers; for each of them a DEALER of its name to the gateway, whose address `control` holds by
    the time that the first worker speaks. Close it."""

    def __init__(self, proxy: Proxy, control: Path) -> None:
        self._proxy, self._control = proxy, control
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._front = self._context.socket(zmq.ROUTER)
        self._front.setsockopt(zmq.LINGER, 0)
        self._front.setsockopt(zmq.ROUTER_HANDOVER, 1)
        port = self._front.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._backs: dict[bytes, zmq.Socket[bytes]] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._front, zmq.POLLIN)
        self._stop = self._context.socket(zmq.PAIR)
        self._stop.bind("inproc://stop")
        self._stopper = self._context.socket(zmq.PAIR)
        self._stopper.connect("inproc://stop")
        self._poller.register(self._stop, zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and every socket."""
        self._stopper.send(b"")
        self._thread.join()
        self._context.destroy(0)

    def _run(self) -> None:
        while self._stop not in (ready := dict(self._poller.poll())):
            with contextlib.suppress(zmq.Again):
                while self._front in ready:
                    identity, raw = self._front.recv_multipart(zmq.NOBLOCK)
                    self._back(identity).send(self._readdressed(raw))
            for identity, back in list(self._backs.items()):
                with contextlib.suppress(zmq.Again):
                    while back in ready:
                        self._front.send_multipart([identity, back.recv(zmq.NOBLOCK)])

    def _back(self, identity: bytes) -> zmq.Socket[bytes]:
        if identity not in self._backs:
            back = self._context.socket(zmq.DEALER)
            back.setsockopt(zmq.LINGER, 0)
            back.setsockopt(zmq.ROUTING_ID, identity)
            back.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
            back.connect(self._control.read_text())
            self._poller.register(back, zmq.POLLIN)
            self._backs[identity] = back
        return self._backs[identity]

    def _readdressed(self, raw: bytes) -> bytes:
        envelope = open_envelope(raw)
        message = TO_GATEWAY.decode(envelope.body) if envelope.body else None
        if not isinstance(message, Register):
            return raw
        told = replace(message, address=behind_gates(message.address, self._proxy))
        return envelope._replace(body=TO_GATEWAY.encode(told)).sealed()
