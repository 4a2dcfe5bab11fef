"""The messages that a worker's core wants sent. The worker's loop sends and clears them; tests read them."""

from dataclasses import dataclass, field

from protocol.errors import BatonError
from protocol.messages_gateway import RequestFailed, ToGateway, WorkerAddress
from protocol.messages_handoff import ToDecode, ToPrefill


@dataclass
class Outbox:
    """Messages in sending order, by direction."""

    gateway: list[ToGateway] = field(default_factory=list)
    prefill: list[tuple[WorkerAddress, ToPrefill]] = field(default_factory=list)  # used by decode
    decode: list[tuple[int, ToDecode]] = field(default_factory=list)  # used by prefill: (instance, message)

    def fail(self, key: tuple[str, int], error: BatonError) -> None:
        """Tells the gateway that the request `key`, (request_id, attempt), cannot go on."""
        request_id, attempt = key
        failed = RequestFailed(request_id=request_id, attempt=attempt, code=error.code, message=error.message)
        self.gateway.append(failed)
