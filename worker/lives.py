"""The lives of one worker process. Each has an instance of its own; all have the same weights, KV memory and cache.

    what lasts     settings, weights, executor, planner with its KV manager and cache, ZMQ context, keys, stop signal
    begins anew    instance, core, sockets and links, session with the gateway, departure

    life --it has left--> the process ends
     ^  \\--it was declared lost, although its process lives--> its sockets are closed
     +-----------------another instance------------------------/

The planner lasts, because the executor still has its rows. It has no requests when a life ends. Its pages are free or
cached, or in quarantine as long as launches and peers may touch them, as ever. The grammars that it knows are those
that the executor knows.
"""

import random
from collections.abc import Callable

from runtime.log import get_log
from worker.loop import WorkerLoop
from worker.parts import Ending

log = get_log("worker")


def new_instance() -> int:
    """A number that no other life of a worker has."""
    return random.SystemRandom().getrandbits(62)


class Lives:
    """`begin` makes the loop of the life with an instance."""

    def __init__(self, begin: Callable[[int], WorkerLoop]) -> None:
        self._begin = begin
        self.now = begin(new_instance())

    def run(self) -> None:
        """Lives until the worker has left. Raises as WorkerLoop.run does."""
        while self.now.run() is Ending.LOST:
            self.now.close()
            self.now = self._begin(new_instance())
            log.info("comes back", instance=self.now.register.address.instance)
