"""How a prefill worker starts: its core, and its socket for decode workers."""

from prefill.decode_link import DecodeLink
from prefill.worker import PrefillWorker
from protocol.messages_gateway import WorkerAddress
from runtime.bus import Router
from transfer.backends.table import open_sender
from worker.started import Built, Started


def build(started: Started) -> Built:
    """The core, its link to decode workers, and the address where it takes jobs."""
    settings, kv = started.settings, started.kv
    router = Router(started.context, settings.host, started.security)
    address = WorkerAddress(worker_id=settings.worker_id, instance=started.instance, peer=router.endpoint)
    sender = open_sender(
        settings.transfer_backend,
        kv,
        started.instance,
        started.context,
        started.data_security,
        kv if kv.device.type == "cuda" else None,
    )

    worker = PrefillWorker(started.planner, sender, address, started.fingerprint, started.clock, started.policies)
    link = DecodeLink(router, sender, address.instance, worker.outbox, worker.on_peer, worker.on_session_lost)
    return Built(worker, link, address)
