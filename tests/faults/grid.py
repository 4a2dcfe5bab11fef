"""The crash grid: every process x every fault x every phase of a request's life, with the outcomes that are allowed.

deployment.py fires the faults and watches the processes.
"""

import os
import random
import signal
from dataclasses import dataclass

from decode.prefill_peers import HELLO_DEADLINE_S

PHASES = (
    "queued",  # the gateway is about to send Assign
    "reserving",  # decode has reserved, and is about to send the job
    "prefilling",  # the second chunk is enqueued
    "first frame",  # it has just been sent
    "middle frame",
    "last frame",  # it is about to be sent
    "prebuilt",  # delivered; about to join the running batch
    "decoding",  # a few tokens are out
    "finishing",  # the last token is drawn, and not sent
)
VICTIMS = ("prefill", "decode", "gateway", "launcher")
FAULTS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
DELIVERED = ("prebuilt", "decoding", "finishing")  # phases in which decode needs its prefill worker no more
LIMIT_S = HELLO_DEADLINE_S - 5.0  # of what must not wait for a deadline: this is the shortest


@dataclass(frozen=True)
class Cell:
    """One fault. "stop" is SIGSTOP past the limit of silence, then SIGCONT."""

    victim: str
    fault: str
    phase: str

    @property
    def number(self) -> signal.Signals:
        """What is sent."""
        return FAULTS[self.fault]

    @property
    def ends_all(self) -> bool:
        """Whether nothing is left of the deployment."""
        return (self.victim == "launcher" and self.fault != "stop") or (self.victim == "gateway" and self.leaves)

    @property
    def leaves(self) -> bool:
        """Whether the process is told to end. Then it is not started again."""
        return self.fault == "term"

    @property
    def allowed(self) -> set[str]:
        """What the client of the request may get. A worker's loss, a pause, or what leaves, must not show at all."""
        if self.victim in ("prefill", "decode", "unified") or self.fault != "kill":
            return {"exact"}
        # Whoever held the connection is gone; one that only finishes may just have been served.
        return {"cut", "exact"} if self.phase == "finishing" else {"cut"}

    def __str__(self) -> str:
        return f"{self.victim}-{self.fault}-{self.phase.replace(' ', '_')}"


def all_cells() -> list[Cell]:
    """Every cell; those that use up a deployment are spread among the others, so that few deployments are started."""
    cells = [Cell(victim, fault, phase) for victim in VICTIMS for fault in FAULTS for phase in PHASES]
    rng = random.Random(1)
    going_on = [cell for cell in cells if not (cell.ends_all or cell.leaves)]
    ending = [cell for cell in cells if cell.ends_all or cell.leaves]
    rng.shuffle(going_on)
    return [cell for index, last in enumerate(ending) for cell in (*going_on[index :: len(ending)], last)]


# Every victim, every fault and every phase at least once; the pairs of them where it has gone wrong before.
FEW = (
    Cell("decode", "kill", "middle frame"),
    Cell("prefill", "kill", "first frame"),
    Cell("gateway", "kill", "decoding"),
    Cell("decode", "stop", "prebuilt"),
    Cell("prefill", "term", "last frame"),
    Cell("launcher", "kill", "prefilling"),
    Cell("decode", "kill", "finishing"),
    Cell("prefill", "stop", "prefilling"),
    Cell("gateway", "stop", "queued"),
    Cell("decode", "term", "decoding"),
    Cell("launcher", "stop", "reserving"),
    Cell("launcher", "term", "decoding"),
)


def stretched(seconds: float) -> float:
    """A limit as it must be granted while other programs want the same cores."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
