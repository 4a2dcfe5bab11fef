"""Generated mutants that no test needs to notice, each with the reason. `make mutants` leaves them out."""

from dataclasses import dataclass

from tests.mutants.generate import Generated


@dataclass(frozen=True)
class Harmless:
    """The mutants of `function` in `path` whose diff is `change`: `Generated.change`, a line each.

    A test fails when no mutant is like that any more. So an entry goes when its function changes there.
    """

    path: str
    function: str
    change: tuple[str, ...]
    why: str


HARMLESS = (
    Harmless(
        "scheduler/planning/speculation.py",
        "Speculation.has_draft",
        (' """Whether the executor has a draft."""', "-return self.hidden_size > 0", "+return self.hidden_size > 1"),
        "No model has hidden states of one number.",
    ),
    Harmless(
        "worker/rank_sockets.py",
        "RankSockets._wait",
        (
            " poller = zmq.Poller()",
            "+poller.register(stop.fd, zmq.POLLIN)",
            " poller.register(self.inbox, zmq.POLLIN)",
            "-poller.register(stop.fd, zmq.POLLIN)",
            " poller.poll(max(0, int(timeout_s * 1000.0)))",
        ),
        "A poller waits for both sockets, whichever was registered first.",
    ),
    Harmless(
        "worker/requests.py",
        "TokenStream.add",
        (
            " self._cached[req.request_id] = num_cached",
            "-if first < 2:",
            "+if first <= 2:",
            " for name in filter(None, self.names[first:first + len(taken)]):",
        ),
        "There are two names, so the third token of a choice finds none. The guard only saves later ones the loop.",
    ),
    Harmless(
        "worker/prompts.py",
        "Prompts.admit",
        (
            " if not self.waiting:",
            "-return admitted",
            "+pass",
            " budget = self._policies.launch_tokens(self._decode_tokens(len(self._planner.decodes())))",
        ),
        "The loop finds nobody either. Returning saves a turn without waiting requests a look at those that decode.",
    ),
    Harmless(
        "worker/served.py",
        "Served._end",
        (
            " def _end(self, request: A, error: BatonError | None) -> None:",
            "+self._forget(request)",
            " request.cancel()",
            "-self._forget(request)",
            " self._role.ended(request, error)",
        ),
        "Neither reads what the other changes, and the role hears of both.",
    ),
)

_KEYS = {(each.path, each.function, each.change) for each in HARMLESS}


def is_harmless(mutant: Generated) -> bool:
    """Whether it is listed."""
    return (mutant.path, mutant.function, mutant.change) in _KEYS
