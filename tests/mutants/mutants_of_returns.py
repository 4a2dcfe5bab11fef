"""Sabotages of what happens when a worker that was declared lost returns as another instance."""

from tests.mutants.mutant import Mutant

WORLDS = ("tests/explore_handoff/test_returns.py",)
LOOP = ("tests/worker/test_loop_lost.py",)


def _mutant(name: str, function: str, old: str, new: str, why: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, function, old, new, why, (), tests)


RETURNS = (
    _mutant(
        "a worker that returns keeps its seats in the memory of its peers",
        "FrameSender.close",
        "self.drop_peer(instance)",
        "",
        "their pages stay in quarantine, and it may write into them",
        ("tests/transfer/backends/test_shm.py",),
    ),
    _mutant(
        "a worker that is lost keeps its links",
        "WorkerLoop._on_lost",
        "self.link.close()",
        "",
        "what its peers say to the former instance is never told apart from what they say to the next one",
        LOOP,
    ),
    _mutant(
        "a worker that is lost keeps its requests",
        "WorkerLoop._on_lost",
        "self.core.reset()",
        "",
        "their rows and pages are never free again",
        WORLDS,
    ),
    _mutant(
        "a flush that was missed is not made up for",
        "KnownGateway.answered",
        "message.num_flushes != self.num_flushes",
        "message.num_flushes < self.num_flushes",
        "KV from before a flush is found after it",
        WORLDS,
    ),
    _mutant(
        "a worker that returns hears its peers before the gateway",
        "WorkerLoop._receive",
        "if self._was_member: ...",
        "if not self._is_member or self._is_member: ...",
        "it computes with KV from before a flush that it is told of a moment later",
        LOOP,
    ),
    _mutant(
        "a gateway does not say how often it has flushed",
        "Membership._welcome",
        "self._num_flushes[role]",
        "0",
        "who slept during a flush keeps what it has cached",
        WORLDS,
    ),
    _mutant(
        "the launches of a life that is over are not waited for",
        "WorkerLoop.is_over",
        "not self.core.loop.busy",
        "True",
        "a worker whose launch never ends joins again and again, and its requests wait",
        LOOP,
    ),
    _mutant(
        "what is cached is not told anew",
        "WorkerLoop._on_answer",
        "book.news.tell_anew()",
        "",
        "the gateway sends prompts elsewhere although the worker has their KV",
        LOOP,
    ),
    _mutant(
        "a worker that is lost reads on from sockets that are closed",
        "WorkerLoop.turn",
        "if self._drain_by is None: ...",
        "if self._drain_by is None or self._drain_by: ...",
        "the process ends with an error, and its cache is lost",
        LOOP,
    ),
    _mutant(
        "a worker returns as the instance that was declared lost",
        "Lives.run",
        "self._begin(new_instance())",
        "self._begin(self.now.register.address.instance)",
        "the gateway tells it again and again that it is lost",
        ("tests/worker/test_lives.py",),
    ),
    _mutant(
        "what the former instance of a worker says is taken",
        "Control._on_message",
        "identity not in self._sessions",
        "False",
        "nobody sees that its messages still come",
        ("tests/gateway/test_control_returns.py",),
    ),
    _mutant(
        "a worker whose launch hangs may return",
        "Membership._lose",
        "not self._patience.hangs(each)",
        "True",
        "it hangs in its next life, too",
        ("tests/gateway/test_membership.py",),
    ),
    _mutant(
        "a seat is offered once more in the next life",
        "SharedMemory.new_seat",
        "self._num_seats += 1",
        "self._num_seats = 1",
        "pages in quarantine wait for whoever holds the seat now",
        ("tests/transfer/backends/test_shm.py",),
    ),
)
