"""The table of a step: what a worker with sockets is given and how its readings become lines."""

import json
import os
import subprocess
import sys

import pytest
import zmq

from bench.overlap.__main__ import main
from bench.overlap.front import assigns
from bench.overlap.service import COLUMNS, Reading, _summed
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import TO_GATEWAY, TO_WORKER, Assign, Register, Role, Welcome, WorkerAddress
from protocol.worker_facts import KvPages, WorkerStats
from runtime.bus import Dealer
from runtime.session import Session, open_envelope


def test_readings_become_milliseconds_of_a_step() -> None:
    seen = [
        (10.0, Reading(5, 0.0, 0.0, 0.0, 0.0, 0.0)),
        (10.1, Reading(15, 0.08, 0.06, 0.004, 0.010, 0.006)),
        (10.2, Reading(25, 0.16, 0.12, 0.008, 0.020, 0.012)),
    ]
    found = _summed(seen, alone_s=0.007, parts=[0.003, 0.001], read_s=0.002)
    assert vars(found) == pytest.approx(
        {
            "step_ms": 10, "launch_ms": 8, "products_ms": 3, "attention_ms": 1, "rest_ms": 1.6, "threads_ms": 1,
            "interpreter_ms": 1, "others_ms": 0.4, "alone_ms": 7, "read_ms": 2,
        }
    )  # fmt: skip
    assert sum((3, 1, 1.6, 1, 1, 0.4)) == found.launch_ms


def test_the_front_welcomes_a_worker_and_gives_it_requests() -> None:
    stats = WorkerStats(KvPages(total=1, free=1), running=0, waiting=0)
    layout = KvLayout.uniform(1, 1, 1, 1, "float32")
    register = Register(
        WorkerAddress("bench", 1), Role.UNIFIED, 1, "host", layout, Fingerprint("print"), 9, 9, 9, 9, stats, ""
    )
    command = [sys.executable, "-m", "bench.overlap.front", "3", "4", "5", "100"]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        dealer, session = Dealer(context, process.stdout.readline().strip(), b"bench#1"), Session(1)
        dealer.send(session.seal(TO_GATEWAY.encode(register)))
        heard: list[object] = []
        while len(heard) < 4:
            assert dealer.socket.poll(60_000)
            heard += [TO_WORKER.decode(open_envelope(raw).body) for raw in dealer.receive()]
        process.stdin.close()
        assert process.wait(60) == 0
    dealer.close()
    context.term()
    assert isinstance(heard[0], Welcome) and heard[1:] == assigns(3, 4, 5, 100)
    assert all(isinstance(each, Assign) and len(each.prompt_ids) == 4 for each in heard[1:])


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this kernel does not say who waits for a core")
def test_a_short_run_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "models/story", "--where", "--batches", "1,2", "--context", "8", "--rounds", "2"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["where"]
    assert found.keys() == {"1 threads, 1", "1 threads, 2", "2 threads, 1", "2 threads, 2"}
    for line in found.values():
        assert [name.removesuffix("_ms") for name in line] == list(COLUMNS)
        assert line["step_ms"] > 0 and line["launch_ms"] > 0 and line["read_ms"] > 0
