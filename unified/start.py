"""How a unified worker starts: its core. It has no peers."""

from protocol.messages_gateway import WorkerAddress
from unified.worker import UnifiedWorker
from worker.parts import PeerLink
from worker.started import Built, Started


def build(started: Started) -> Built:
    """The core, a link to nobody, and an address for the gateway."""
    worker_id = started.settings.worker_id
    worker = UnifiedWorker(started.planner, worker_id, started.clock, started.policies)
    return Built(worker, PeerLink(), WorkerAddress(worker_id=worker_id, instance=started.instance))
