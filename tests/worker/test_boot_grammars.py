"""The threads that run the library of grammars in a worker."""

import os
import threading
from concurrent.futures import Executor as Pool
from pathlib import Path

from model.fake import FakeRunner
from protocol.messages_gateway import Role
from runtime.native_stack import STACK_BYTES
from runtime.settings import WorkerSettings
from scheduler.execution.streams import BESIDE_NICENESS
from worker.boot import answer_grammars


def stack_and_niceness(pool: Pool) -> tuple[int, int]:
    """Of a live thread of the pool: its stack is the mapping in which its control block lies."""

    def look() -> tuple[int, int]:
        address, niceness = threading.get_ident(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        for line in Path("/proc/self/maps").read_text().splitlines():
            start, _, end = line.partition(" ")[0].partition("-")
            if int(start, 16) <= address < int(end, 16):
                return int(end, 16) - int(start, 16), niceness
        raise AssertionError("the address is mapped")

    return pool.submit(look).result()


def test_they_have_deep_stacks_and_those_that_no_launch_waits_for_give_way() -> None:
    settings = WorkerSettings(worker_id="w", role=Role.UNIFIED, gateway="tcp://127.0.0.1:1", model="/m", threads=2)
    grammars = answer_grammars(FakeRunner(), settings, lambda: None)
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        found = [stack_and_niceness(pool) for pool in (grammars.masking, grammars.compiling, grammars.beside)]
    finally:
        grammars.close()
    assert all(stack >= STACK_BYTES for stack, _ in found)
    assert [niceness for _, niceness in found] == [mine, *[min(19, mine + BESIDE_NICENESS)] * 2]
    assert grammars.num_threads == 2
