"""`python -m unified --settings JSON`: one unified worker process. worker/boot.py runs it."""

from runtime.process_life import die_with_parent

die_with_parent()  # before the imports below, which take seconds

from protocol.messages_gateway import WorkerAddress
from unified.worker import UnifiedWorker
from worker.boot import main
from worker.parts import PeerLink
from worker.started import Started


def build(started: Started) -> tuple[UnifiedWorker, PeerLink, WorkerAddress]:
    """The core; it has no peers."""
    settings = started.settings
    worker = UnifiedWorker(
        started.planner,
        settings.worker_id,
        started.clock,
        overlap=not settings.disable_overlap_schedule,
        policies=started.policies,
        chunk_size=settings.chunked_prefill_size,
    )
    return worker, PeerLink(), WorkerAddress(worker_id=settings.worker_id, instance=started.instance)


if __name__ == "__main__":
    main(build)
