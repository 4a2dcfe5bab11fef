"""What a worker's core wants sent. The process loop empties it; tests read it.

What it does not know: sockets.
"""

from dataclasses import dataclass, field

from protocol.messages_gateway import ToGateway, WorkerAddress
from protocol.messages_handoff import ToDecode, ToPrefill


@dataclass
class Outbox:
    """Messages in sending order, by direction."""

    gateway: list[ToGateway] = field(default_factory=list)
    prefill: list[tuple[WorkerAddress, ToPrefill]] = field(default_factory=list)  # by decode only
    decode: list[tuple[int, ToDecode]] = field(default_factory=list)  # by prefill only; to the instance
