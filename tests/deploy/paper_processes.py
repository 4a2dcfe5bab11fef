"""Processes that exist on paper only, in time that moves only when told, and a supervisor of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import cast

from deploy.console import Console
from deploy.launcher import Launcher
from deploy.layout import ProcessSpec
from deploy.options import Rules
from deploy.sentences import Ended
from deploy.supervisor import Supervisor
from protocol.messages_gateway import Role
from runtime.supervision import UnitNews
from tests.doubles.clock import VirtualClock


@dataclass
class PaperChild:
    name: str
    heard_at: float
    ready: object = None
    is_beating: bool = True
    told: list[UnitNews] = field(default_factory=list)
    is_deaf: bool = False

    def tell(self, line: bytes) -> bool:
        news = UnitNews.from_line(line)
        assert news is not None
        self.told += [] if self.is_deaf else [news]
        return not self.is_deaf


@dataclass
class PaperProcesses:
    """`pending` are ends to report. A turn without news takes all the time that it is given."""

    clock: VirtualClock
    children: dict[str, PaperChild]
    pending: list[Ended] = field(default_factory=list)
    starts: list[tuple[float, str]] = field(default_factory=list)  # (when, who)
    epochs: list[int] = field(default_factory=list)  # of the starts
    silent: set[str] = field(default_factory=set)
    killed: dict[str, str] = field(default_factory=dict)
    cannot_start: bool = False

    def turn(self, timeout_s: float) -> list[Ended]:
        if not self.pending:
            self.clock.advance(timeout_s)
        ends, self.pending = self.pending, []
        for name, child in self.children.items():
            child.heard_at = child.heard_at if name in self.silent else self.clock.now()
        return ends

    def start_again(self, specs: Sequence[ProcessSpec], num_starts: int) -> None:
        if self.cannot_start:
            raise OSError("no memory")
        for spec in specs:
            self.starts.append((self.clock.now(), spec.name))
            self.epochs.append(num_starts)
            self.killed.pop(spec.name, None)
            is_beating = self.children[spec.name].is_beating
            self.children[spec.name] = PaperChild(spec.name, self.clock.now(), is_beating=is_beating)

    def beat_no_more(self) -> None:
        for child in self.children.values():
            child.is_beating = False

    def kill(self, name: str, because: str) -> None:
        self.killed[name] = because


class Stage:
    """A supervisor of processes on paper. `group` is that of those whose names have a dot."""

    def __init__(self, rules: Rules, names: Sequence[str], roles: Mapping[str, Role] = MappingProxyType({})) -> None:
        self.clock = VirtualClock(100.0)
        self.processes = PaperProcesses(self.clock, {name: PaperChild(name, 0.0) for name in names})
        self.supervisor = Supervisor(
            cast(Launcher, self.processes),
            [ProcessSpec(name, (), {}, group=name.rpartition(".")[0]) for name in names],
            rules,
            self.clock,
            Console(with_logs=True),
            lambda name, given_up: f"{name} of {len(given_up)} is missed",
            roles,
        )

    def end(self, name: str, code: int, was_ready: bool = True) -> None:
        self.processes.pending.append(Ended(name, code, "", was_ready=was_ready))
        self.supervisor.turn()

    def turns(self, seconds: float) -> None:
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            self.supervisor.turn()
