"""Arms the phase hooks of a deployment: one fault at a time, the proof that it fired, the end of a hold."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import python_path

HOOKED = Path(__file__).with_name("hooked")


@dataclass(frozen=True)
class Proof:
    """Written by the hook when it fired. `at` is in seconds of the monotonic clock, which all processes share."""

    phase: str
    at: float
    by: int  # the process in which the phase began
    victim: str  # "gateway", "launcher" or a worker id
    pid: int


class Arming:
    """The folder in which a test and the hooks of its processes find one another's files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.variables = {
            "PYTHONPATH": python_path(HOOKED, HOOKED.parents[2]),
            "PHASE_HOOKS_FOLDER": str(folder),
        }

    def arm(
        self, phase: str, marker: Sequence[int], victim: str, number: int, pids: Mapping[str, int], **more: Any
    ) -> None:
        """The fault waits for `phase` of the request whose prompt begins with `marker`. `victim` is a role; signal 0
        holds the process instead, until `let_go`. `more`: `num_outputs` and `hold_s` of sitecustomize.py."""
        for path in self.folder.iterdir():
            path.unlink()
        armed = {"phase": phase, "marker": list(marker), "victim": victim, "signal": int(number), "pids": pids, **more}
        (self.folder / "part").write_text(json.dumps(armed))
        (self.folder / "part").rename(self.folder / "armed.json")

    def proof(self, phase: str, wait_until: Callable[[Callable[[], bool]], bool], story: Callable[[], str]) -> Proof:
        """What the hook wrote when it fired; an assertion error when it does not fire, or elsewhere."""
        path = self.folder / "proof.json"
        assert wait_until(path.exists), f"{phase}: the phase was never reached; {story()}"
        proof = Proof(**json.loads(path.read_text()))
        assert proof.phase == phase
        return proof

    def let_go(self) -> None:
        """Ends a hold; it must still last."""
        (self.folder / "go").touch()
        assert not (self.folder / "hold-is-over").exists(), "the process was not held long enough"
