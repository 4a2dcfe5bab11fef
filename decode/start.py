"""How a decode worker starts: its core, and its sockets to prefill workers."""

import secrets

from decode.prefill_link import PrefillLink
from decode.worker import DecodeWorker
from protocol.messages_gateway import RankEndpoint, WorkerAddress
from transfer.backends.table import open_receiver
from worker.started import Built, Started


def build(started: Started) -> Built:
    """The core, its link to prefill workers, and the address where it receives KV."""
    settings, kv = started.settings, started.kv
    receiver = open_receiver(
        settings.transfer_backend,
        kv,
        settings.host,
        started.context,
        started.data_security,
        kv if kv.device.type == "cuda" else None,
    )

    address = WorkerAddress(
        worker_id=settings.worker_id, instance=started.instance, ranks=(RankEndpoint(receiver.address),)
    )
    worker = DecodeWorker(
        started.planner,
        receiver,
        address,
        started.fingerprint,
        started.clock,
        started.policies,
        may_lack_draft=settings.speculative_pair_without_draft,
        reservations_from=secrets.randbits(62),  # nobody may guess the number, which lets a frame in
    )
    link = PrefillLink(
        started.context,
        started.identity,
        receiver,
        worker.outbox,
        worker.on_peer,
        worker.on_session_lost,
        started.security,
    )
    return Built(worker, link, address)
