"""An executor in a process of its own: operations come over a socket, outcomes go back.

    python -m tests.scheduler.executor_process ENDPOINT PARENT_PID

An empty message ends it. Its last message is empty too, and says that nothing was in flight.
"""

import sys

import zmq

from model.paged_kv import PagedKv
from runtime.bus import Wake
from runtime.process_life import die_with_parent
from scheduler.execution.streams import HostStream
from scheduler.plan import OPERATIONS, OUTCOMES
from tests.decode.driving import VOCAB
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import make_executor

PAGE_SIZE, NUM_PAGES, MAX_REQUESTS = 4, 64, 8


def main(endpoint: str) -> None:
    """Serves until the empty message."""
    runner, wake = FakeRunner(vocab_size=VOCAB, context_length=64), Wake()
    kv = PagedKv(runner.kv_layout(PAGE_SIZE), NUM_PAGES)
    executor = make_executor(HostStream("forward", wake.set), runner=runner, kv=kv, max_requests=MAX_REQUESTS)
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.connect(endpoint)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(wake.fd, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            wake.clear()  # before poll(): what is over after it wakes again
            if socket in ready:
                raw = socket.recv()
                if not raw:
                    break
                executor.submit(OPERATIONS.decode(raw))
            while outcomes := executor.poll():
                for outcome in outcomes:
                    socket.send(OUTCOMES.encode(outcome))
        assert not executor.launches and not executor.copies, "it ends with work in flight"
        executor.close()
        socket.send(b"")


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    main(sys.argv[1])
