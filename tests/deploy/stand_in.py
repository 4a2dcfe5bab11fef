"""A process that behaves like a gateway or worker of Baton towards the launcher, and as the test wishes otherwise.

python stand_in.py BEHAVIOUR --settings JSON --status-fd N, where BEHAVIOUR is one of the functions below.
"""

import os
import select
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from runtime.log import get_log, start_log
from runtime.process_life import StatusPipe, StopSignal, die_with_parent
from runtime.settings import GatewaySettings, WorkerSettings, read_arguments

LOG = get_log("stand_in")


def wait_for(stop: StopSignal) -> None:
    select.select([stop.fd], [], [])


def gateway(status: StatusPipe, settings: GatewaySettings) -> int:
    with StopSignal() as stop:
        status.ready(http=f"http://127.0.0.1:{settings.port or 54321}", control="tcp://127.0.0.1:40123")
        wait_for(stop)
    return 0


def worker(status: StatusPipe, settings: WorkerSettings) -> int:
    with StopSignal() as stop:
        for done in range(3):
            status.loading("weights", done=done, total=3)
        LOG.info("registered", gateway=settings.gateway, threads=os.environ["OMP_NUM_THREADS"])
        status.ready(kv_pages=100)
        wait_for(stop)
    LOG.info("leaving")
    return 0


def worker_once(status: StatusPipe, settings: WorkerSettings) -> int:
    """What is started again is told how much KV it had."""
    return 1 if settings.max_total_tokens is not None else worker(status, settings)


def refuses_model(status: StatusPipe, settings: WorkerSettings) -> int:
    status.failed(f"{settings.model}: quantised weights are not supported")
    return 2


def crashes(status: StatusPipe, settings: WorkerSettings) -> int:
    status.loading("weights")
    raise RuntimeError(f"{settings.worker_id} broke")


def ignores_stop(status: StatusPipe, settings: WorkerSettings) -> int:
    with StopSignal() as stop:
        status.ready(kv_pages=1)
        while True:
            wait_for(stop)
            stop.clear_wakeup()


if __name__ == "__main__":
    die_with_parent()
    behaviour = sys.argv[1]
    if behaviour == "gateway":
        gateway_settings, status_fd = read_arguments(GatewaySettings, sys.argv[2:])
        start_log("gateway", gateway_settings.log_level)
        sys.exit(gateway(StatusPipe(status_fd), gateway_settings))
    settings, status_fd = read_arguments(WorkerSettings, sys.argv[2:])
    start_log(settings.worker_id, settings.log_level)
    run = {function.__name__: function for function in (worker, worker_once, refuses_model, crashes, ignores_stop)}[
        behaviour
    ]
    sys.exit(run(StatusPipe(status_fd), settings))
