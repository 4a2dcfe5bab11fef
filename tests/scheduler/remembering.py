"""A planner with an executor that only remembers what it was sent."""

from collections.abc import Sequence
from dataclasses import replace

from protocol.kv_layout import KvLayout, LayerGroup
from scheduler.draft_shape import DraftShape
from scheduler.plan import (
    Draw,
    Grant,
    Operation,
    Outcome,
    Plan,
    StepResult,
)
from scheduler.planning.kv_manager import KvManager
from scheduler.planning.launch_costs import StepCosts
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from scheduler.planning.speculation import Speculation
from scheduler.planning.spills import Costs


class Remembers:
    """An executor that runs nothing. A test says what has happened."""

    def __init__(self) -> None:
        self.sent: list[Operation] = []
        self.outcomes: list[Outcome] = []

    def submit(self, operation: Operation) -> None:
        self.sent.append(operation)

    def poll(self) -> Sequence[Outcome]:
        taken, self.outcomes = self.outcomes, []
        return taken

    @property
    def plan(self) -> Plan:
        """The newest."""
        assert isinstance(self.sent[-1], Plan)
        return self.sent[-1]


def make(
    num_pages: int = 64,
    max_requests: int = 8,
    *,
    has_twin: bool = False,
    num_host_pages: int = 0,
    costs: Costs | None = None,
    caches: bool = False,
    lookahead: int = 0,
    costs_of_steps: StepCosts | None = None,
) -> tuple[Planner, Remembers]:
    executor = Remembers()
    layout = KvLayout.uniform(2, 1, 4, 4, "float32")
    if lookahead:
        layout = replace(layout, groups=(*layout.groups, LayerGroup(1, 1, 4, lookahead)))
    sizes = {"max_requests": max_requests, "max_context": 64, "num_host_pages": num_host_pages, "lookahead": lookahead}
    kv_manager = KvManager(num_pages, 4, **sizes, caches=caches)
    speculation = Speculation(DraftShape(3), 9, costs_of_steps) if lookahead else None
    planner = Planner(kv_manager, executor, layout, 97, has_twin=has_twin, costs=costs, speculation=speculation)
    return planner, executor


def finish(planner: Planner, executor: Remembers) -> None:
    """The oldest launch is over, and drew nothing for those that decode."""
    launched = planner.in_flight[0]
    runs: tuple[tuple[int, ...], ...] = ((),) * len(launched.decodes)
    owners = tuple(req.held.owner if req.holding else (0, 0) for req in launched.decodes)
    executor.outcomes.append(StepResult(launched.ticket, owners, runs))
    ((taken, _),) = planner.poll()
    assert taken is launched


def grant_of(req: Req, start: int = 0, end: int | None = None) -> Grant:
    held = req.held
    return Grant(held.row, held.owner_number, start, tuple(held.pages[start:end]))


def draw_of(req: Req, until: int) -> Draw:
    return Draw(req.held.row, req.held.owner_number, req.choice, req.sampling, until, req.longest)
