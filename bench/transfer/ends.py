"""The two ends of the transfer benchmark: the product's senders and receivers, driven as workers drive them.

    decode   reserves, PrefillJob -->   prefill   opens, layer after layer, finish
    decode   lands, DataCredit ...      prefill   sends what credit allows
    decode   Delivered, KvDelivered --> prefill   done

process.py runs each in its own process.
"""

import os
from typing import Any

import zmq

from bench.transfer.blocks import Blocks, HostPages
from protocol.errors import BatonError
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import Assign, RankEndpoint, SamplingParams, WorkerAddress
from protocol.messages_handoff import (
    TO_DECODE,
    TO_PREFILL,
    DataCredit,
    Hello,
    HelloAccepted,
    KvDelivered,
    PrefillJob,
    ToPrefill,
)
from runtime.bus import Dealer, Router
from runtime.clock import MonotonicClock
from runtime.curve import open_security
from runtime.keys import read_keys
from runtime.log import get_log
from runtime.settings import TransferBackend
from transfer.backends.table import open_receiver, open_sender
from transfer.interfaces import Pollable
from transfer.landing.transfer import CreditReturned, Delivered, FrameRejected, TransferFailed
from transfer.sending.transfer import Destination

HOST = "127.0.0.1"
PREFILL, DECODE = 11, 22  # instances
MOVE_S = 60  # longer than any move that is measured
READING_POLL_MS = 1
KEYS = "TRANSFER_BENCH_KEYS"  # the variable that names the folder of keys
log = get_log("bench")


class End:
    """One end of a side; this one does nothing, for a limit that the other end measures alone. Times are seconds of the
    host's monotonic clock."""

    def __init__(self, memory: HostPages, blocks: Blocks) -> None:
        self._memory, self._blocks = memory, blocks

    @property
    def address(self) -> str:
        """What the other end must be told to connect."""
        return ""

    def meet(self, address: str) -> None:
        """Connects the two ends; blocks."""

    def move(self, check: bool) -> dict[str, float]:
        """Moves everything once; blocks. {"start": when sending began} or {"end": when all had arrived}, or both.

        `check`: with checksums. Sides of the product follow `protocol.frame.checksum`, which the caller replaces.
        """
        return {}

    def close(self) -> None:
        """Releases everything."""


class ProductEnd(End):
    """A context of ZeroMQ, encrypted if asked for."""

    def __init__(self, memory: HostPages, blocks: Blocks, encrypted: bool, seed: int) -> None:
        super().__init__(memory, blocks)
        self._pages = blocks.pages(memory.layout, seed)
        self._context: zmq.Context[Any] = zmq.Context()
        self._security = open_security(read_keys(os.environ[KEYS]) if encrypted else None, self._context, log)

    def close(self) -> None:
        """Releases the context, once its sockets are closed."""
        self._security.close()
        self._context.term()


class PrefillEnd(ProductEnd):
    """A FrameSender and the ROUTER that decode dials."""

    def __init__(self, backend: TransferBackend, memory: HostPages, blocks: Blocks, encrypted: bool = False) -> None:
        super().__init__(memory, blocks, encrypted, seed=1)
        self._router = Router(self._context, HOST, self._security)
        self._sender = open_sender(backend, memory, PREFILL, self._context, self._security)
        self._peer = WorkerAddress(worker_id="decode", instance=DECODE)

    @property
    def address(self) -> str:
        """The ROUTER's endpoint."""
        return self._router.endpoint

    def meet(self, address: str) -> None:
        """Waits for the greeting and answers it."""
        _wait([self._router.socket])
        ((identity, raw),) = self._router.receive()
        hello = TO_PREFILL.decode(raw)
        assert isinstance(hello, Hello), hello
        self._peer = hello.address
        offer = self._sender.attach(DECODE, hello.layout, hello.offer)
        ours = WorkerAddress(worker_id="prefill", instance=PREFILL)
        answer = HelloAccepted(address=ours, job_tokens=0, layout=self._memory.layout, offer=offer)
        self._router.send(identity, TO_DECODE.encode(answer))

    def move(self, check: bool) -> dict[str, float]:
        """Serves one job."""
        job = None
        while job is None:
            _wait([self._router.socket])
            job = next((message for message in self._take() if isinstance(message, PrefillJob)), None)

        destination = Destination(self._peer, job.reservation, job.assign.attempt, job.pages)
        # A worker opens the transfer when the job arrives, before it computes the prompt.
        self._sender.open(destination, self._pages, self._blocks.num_tokens)

        start = MonotonicClock().now()
        for layer in range(self._memory.layout.num_layers):
            self._sender.layers_ready(destination, (layer,), self._blocks.num_tokens)
            self._take()
        self._sender.finish(destination, (1,))

        while not any(isinstance(message, KvDelivered) for message in self._take()):
            _wait([self._router.socket])

        self._sender.delivered(destination)
        while self._sender.is_reading(destination):
            zmq.select([self._router.socket], [], [], READING_POLL_MS / 1000)
        return {"start": start}

    def close(self) -> None:
        """Closes the sender, then the socket."""
        self._sender.close()
        self._router.close()
        super().close()

    def _take(self) -> list[ToPrefill]:
        """One turn of a worker's loop. Returns decode's messages."""
        messages = [TO_PREFILL.decode(raw) for _, raw in self._router.receive()]
        for message in messages:
            if isinstance(message, DataCredit):  # the last one of a job arrives after KvDelivered
                self._sender.add_credit(DECODE, message.reservation, message.num_bytes)
        self._sender.pump()
        return messages


class DecodeEnd(ProductEnd):
    """A FrameReceiver and the DEALER to prefill."""

    def __init__(self, backend: TransferBackend, memory: HostPages, blocks: Blocks, encrypted: bool = False) -> None:
        super().__init__(memory, blocks, encrypted, seed=2)
        self._receiver = open_receiver(backend, memory, HOST, self._context, self._security)
        self._dealer: Dealer | None = None
        self._sent: KvLayout = memory.layout
        self._in_place = False
        self._reservation = 0

    @property
    def address(self) -> str:
        """The data plane's address. The greeting also carries it."""
        return self._receiver.address

    def meet(self, address: str) -> None:
        """Dials and greets prefill."""
        self._dealer = Dealer(self._context, address, f"decode#{DECODE}".encode(), security=self._security)
        ours = WorkerAddress(worker_id="decode", instance=DECODE, ranks=(RankEndpoint(self._receiver.address),))
        hello = Hello(
            address=ours,
            layout=self._memory.layout,
            fingerprint=Fingerprint(""),
            offer=self._receiver.offer(PREFILL),
            to=PREFILL,
        )
        self._dealer.send(TO_PREFILL.encode(hello))

        _wait([self._dealer.socket])
        (raw,) = self._dealer.receive()
        accepted = TO_DECODE.decode(raw)
        assert isinstance(accepted, HelloAccepted), accepted

        self._sent = accepted.layout
        self._in_place = self._receiver.answered(PREFILL, accepted.offer).in_place

    def move(self, check: bool) -> dict[str, float]:
        """One reservation, from its job to its end."""
        dealer = self._dealer
        assert dealer is not None, "meet() comes first"

        self._reservation += 1
        number, in_place = self._reservation, self._in_place
        self._receiver.reserve(number, 0, PREFILL, self._pages, self._blocks.num_tokens, self._sent, in_place)

        pages = tuple(self._pages) if in_place else None
        assign = Assign(
            request_id="bench",
            attempt=0,
            prompt_ids=(),
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
            num_choices=1,
            prefill=None,
        )
        dealer.send(TO_PREFILL.encode(PrefillJob(assign, number, pages)))

        end = 0.0
        while not end:
            _wait(self._receiver.pollables())
            for event in self._receiver.poll():
                if isinstance(event, CreditReturned):
                    dealer.send(TO_PREFILL.encode(DataCredit(event.reservation, event.num_bytes)))
                elif isinstance(event, Delivered):
                    end = MonotonicClock().now()
                    dealer.send(TO_PREFILL.encode(KvDelivered(number)))
                elif isinstance(event, FrameRejected | TransferFailed):
                    raise BatonError(f"the transfer went wrong: {event}")

        self._receiver.release(number)
        return {"end": end}

    def close(self) -> None:
        """Closes the receiver, then the socket."""
        self._receiver.close()
        if self._dealer is not None:
            self._dealer.close()
        super().close()


def _wait(pollables: list[Pollable]) -> None:
    poller = zmq.Poller()
    for pollable in pollables:
        poller.register(pollable, zmq.POLLIN)
    if not poller.poll(MOVE_S * 1000):
        raise BatonError(f"nothing has come for {MOVE_S} s")
