"""The parts of a worker that has started, from which a role makes its core and its link."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import zmq

from model.paged_kv import PagedKv
from protocol.fingerprint import Fingerprint
from protocol.messages_gateway import WorkerAddress
from runtime.clock import MonotonicClock
from runtime.curve import Security
from runtime.settings import WorkerSettings
from scheduler.planning.planner import Planner
from worker.parts import Core, PeerLink
from worker.policies import Policies

CPU_MIXED_CHUNK: Final = 512  # tokens; more at a time are hardly faster on a CPU, and others wait longer for them


@dataclass(frozen=True)
class Started:
    """The parts from which a role builds its core and link. All but `instance`, which is that of one life, last as long
    as the process."""

    settings: WorkerSettings
    instance: int
    planner: Planner
    kv: PagedKv
    fingerprint: Fingerprint
    context: "zmq.Context[zmq.Socket[bytes]]"
    clock: MonotonicClock
    security: Security  # of sockets for messages
    data_security: Security  # of sockets for KV

    @property
    def identity(self) -> bytes:
        """The routing id of its sockets in this life."""
        return f"{self.settings.worker_id}#{self.instance}".encode()

    @property
    def policies(self) -> Policies:
        """How the worker schedules."""
        settings = self.settings
        return Policies(
            overlap=not settings.disable_overlap_schedule,
            chunk_size=settings.chunked_prefill_size,
            schedule_policy=settings.schedule_policy,
            max_queued_requests=settings.max_queued_requests,
            max_prefill_tokens=settings.max_prefill_tokens,
            mixed_chunk_size=settings.mixed_chunk_size or (CPU_MIXED_CHUNK if self.kv.device.type == "cpu" else None),
            enable_mixed_chunk=settings.enable_mixed_chunk,
        )


class Built(NamedTuple):
    """One life of a worker: `address` is where its peers reach it."""

    core: Core
    link: PeerLink
    address: WorkerAddress


BuildRole = Callable[[Started], Built]
