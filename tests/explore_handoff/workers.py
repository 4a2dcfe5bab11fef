"""A worker process in virtual time: the product's loop, core, links, sender and receiver; streams, sockets and wires
are simulated.

It turns when something has come or when a launch has ended, and now and then; not while it is paused. If it is declared
lost meanwhile, it comes back as another instance, with the same executor and planner. What it does not know: what goes
wrong, or when.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

import torch

from decode.prefill_link import PrefillLink
from decode.worker import DecodeWorker
from model.draft import begins_with
from model.host_copies import HostCopies
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from prefill.decode_link import DecodeLink
from prefill.worker import PrefillWorker
from protocol.errors import GroupBroken, Unavailable
from protocol.fingerprint import Fingerprint
from protocol.messages_gateway import RankEndpoint, Register, Role, WorkerAddress
from runtime.bus import Dealer, Router
from runtime.process_life import StopSignal
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.executor import Executor
from scheduler.execution.streams import InlineStream
from scheduler.planning.kv_manager import KvManager
from scheduler.planning.overlap_loop import TOO_MANY
from scheduler.planning.planner import Planner
from scheduler.planning.speculation import Speculation
from scheduler.speculation.modes import launches_for
from tests.decode.driving import VOCAB
from tests.doubles.hash_model import FakeRunner
from tests.explore.proposals import Proposals
from tests.explore_handoff.agenda import Agenda
from tests.explore_handoff.data_plane import DataPlane, SimulatedArrivals, SimulatedWire
from tests.explore_handoff.groups import Group
from tests.explore_handoff.memory import SourceMemory, TargetMemory
from tests.explore_handoff.network import Network
from tests.explore_handoff.scenario import CONTEXT, Scenario
from tests.explore_handoff.seats import Seat
from tests.explore_handoff.shared_pages import SharedPool, way_into
from tests.explore_handoff.sockets import SimulatedContext
from tests.explore_handoff.story import Story
from tests.explore_handoff.vintages import Vintages
from tests.grammars import grammars_for
from transfer.in_place.pools import IN_PLACE, Pools
from transfer.in_place.writers import Writers
from transfer.landing.frame_receiver import FrameReceiver
from transfer.sending.frame_sender import FrameSender
from worker.gateway_link import GatewayLink
from worker.known_gateway import KnownGateway
from worker.loop import WorkerLoop
from worker.parts import RefusedByGateway, WorkerBroken
from worker.parts import Surroundings as WorkerSurroundings
from worker.policies import Policies

GATEWAY_ENDPOINT = "tcp://gateway:1"
INJECTED = "a failure for the test"
TURN_S = 0.0005  # one turn of a loop, at most
IDLE_S = 0.125  # a loop turns at least so often
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Surroundings:
    """What every process of a world shares."""

    scenario: Scenario
    agenda: Agenda
    story: Story
    network: Network
    plane: DataPlane
    rng: random.Random
    vintages: Vintages
    pools: dict[int, SharedPool] = field(default_factory=dict)  # of decode workers that ever were, by process
    instances: Iterator[int] = field(default_factory=lambda: count(1))


@dataclass
class _Stop:
    """For the loop's StopSignal."""

    received: None = None
    count: int = 0


@dataclass
class _Wake:
    """For the loop's Wake, which nobody waits on."""

    fds: list[int] = field(default_factory=list)


class WorkerProcess:
    """`on_turn` is called after each turn, `on_end` when the process ends by itself. `seat`: see seats.py."""

    def __init__(
        self,
        world: Surroundings,
        role: Role,
        worker_id: str,
        on_turn: Callable[["WorkerProcess"], None],
        on_end: Callable[["WorkerProcess"], None],
        seat: Seat | None = None,
    ) -> None:
        self.world = world
        self.role, self.worker_id = role, worker_id
        self.process = self._become(next(world.instances))  # as if the first instance were its pid
        self.alive = True
        self.paused_until = 0.0
        self.fails_next = False  # the next forward raises
        self.fails_always = False  # every forward raises
        self.num_launch_failures = 0
        self.context = SimulatedContext(world.network, self)
        self._on_turn, self._on_end = on_turn, on_end
        self._turn_at = float("inf")
        scenario = world.scenario
        self._seat = seat or Seat()
        self.forward = self._seat.stream(world.agenda, world.story, self, world.rng, scenario.pace_s)
        self.runner = self._seat.seated(
            FakeRunner(
                vocab_size=VOCAB,
                context_length=CONTEXT,
                before_forward=self._maybe_fail,
                draft_seed=1 if scenario.num_steps else None,
                num_draft_layers=scenario.num_layers,
                has_experts=scenario.has_experts,
            )
        )
        page_size = scenario.page_size if role is Role.PREFILL else scenario.decode_page_size
        num_tokens = scenario.num_tokens if role is Role.PREFILL else scenario.decode_tokens
        num_pages = 1 + num_tokens // page_size
        num_host_pages = 0 if role is Role.PREFILL else scenario.num_host_pages
        layout = self.runner.kv_layout(page_size)
        kv_manager = KvManager(
            num_pages,
            page_size,
            max_requests=scenario.max_requests,
            max_context=CONTEXT,
            margin=scenario.margin,
            caches=role in scenario.caches,
            num_host_pages=num_host_pages,
            lookahead=layout.lookahead,
        )
        kv, draft = PagedKv(layout, num_pages), self.runner.draft
        shape = DraftShape(scenario.num_steps, *scenario.tree) if draft else NO_DRAFT
        self.executor = Executor(
            self.runner,
            kv,
            num_rows=kv_manager.rows.num_rows,
            max_pages=kv_manager.max_pages,
            forward=self.forward,
            schedule=InlineStream(),
            host=HostCopies(kv, num_host_pages) if num_host_pages else None,
            debug=True,
            launches=launches_for(self.runner.draft, shape),
            rank=self._seat.place.rank if self._seat.place else 0,
            num_ranks=self._seat.place.size if self._seat.place else 1,
            grammars=grammars_for(self.runner),
        )
        speculation = Speculation(shape, begins_with(draft)) if draft else None
        self.planner = Planner(
            kv_manager,
            self.executor,
            layout,
            VOCAB,
            costs=scenario.costs,
            speculation=speculation,
            agreement=self._seat.agreement,
            max_graphed=self.runner.max_graphed,
        )
        if speculation is not None:
            Proposals(self.planner, self.runner, scenario.varied_steps, idle=self.group is not None)
        world.vintages.watch(self.planner, lambda: self.instance, is_prefill=role is Role.PREFILL)
        memory = self.executor.kv, self.planner.kv_manager.pages
        if role is Role.DECODE:
            world.pools[self.process] = SharedPool(self, self.process, *memory, self._writer_of)
        self.sender: FrameSender | None = None
        self.receiver: FrameReceiver | None = None
        self.core: PrefillWorker | DecodeWorker
        self._stop, self._known = _Stop(), KnownGateway()
        self._ranks = self._seat.link(self, self.executor, world.agenda.clock)
        self.loop = self._begin()

    @property
    def group(self) -> Group | None:
        """The group of which it is a rank; None: it is a worker of its own."""
        return self._seat.group

    @property
    def num_launches(self) -> int:
        """Plans that it has made."""
        return self.planner.num_launches

    # ---- its life ----

    def _become(self, instance: int) -> int:
        self.instance, self.name = instance, f"{self.worker_id}#{instance}"
        return instance

    def _begin(self) -> WorkerLoop:
        """The next life; see worker/boot.py."""
        clock, is_prefill = self.world.agenda.clock, self.role is Role.PREFILL
        gateway = GatewayLink(Dealer(cast(Any, self.context), GATEWAY_ENDPOINT, self.name.encode()), clock)
        link: DecodeLink | PrefillLink
        self.core, link, address = self._prefill() if is_prefill else self._decode()
        loop = WorkerLoop(
            self.core,
            link,
            gateway,
            self._register(address),
            WorkerSurroundings(
                cast(StopSignal, self._stop), cast(Any, _Wake()), clock, ranks=self._ranks, known=self._known
            ),
            on_ready=lambda: None,
        )
        loop.gateway.begin()
        self.wake()
        return loop

    def _come_back(self) -> None:
        self.loop.close()
        self.world.story.fault(self.world.agenda.now, self.name, "returned", "as another instance")
        self._become(next(self.world.instances))
        self.loop = self._begin()

    def wake(self) -> None:
        """There is something to do: it turns soon."""
        self._turn_by(self.world.agenda.now + TURN_S * self.world.rng.random())

    def pause(self, seconds: float) -> None:
        """It does nothing for a while; what arrives waits."""
        now = self.world.agenda.now
        self.paused_until = now + seconds
        if self.group is not None:
            self.group.paused(seconds)
        self.world.agenda.at(self.paused_until, self.wake)

    def end(self, silently: bool = False) -> None:
        """The process is gone, with everything that it held."""
        self.alive = False
        if self.group is not None:
            self.group.hurts(f"{self.name} has ended")
        self.world.network.end_of(self, silently)
        self.world.plane.end_of(self)

    def leave(self, bound_s: float) -> None:
        """It is told to end, and has that long to finish what it has begun."""
        self._stop.count += 1
        self.loop.departure.bound_s = bound_s
        self.wake()

    def _turn_by(self, moment: float) -> None:
        if moment < self._turn_at:
            self._turn_at = moment
            self.world.agenda.at(moment, lambda: self._turn_if(moment))

    def _turn_if(self, moment: float) -> None:
        if self._turn_at == moment:
            self._turn_at = float("inf")
            if self.alive and self.world.agenda.now >= self.paused_until:
                self._turn()

    def _turn(self) -> None:
        try:
            progressed = self.loop.turn()
        except (RefusedByGateway, Unavailable, WorkerBroken) as error:
            self.world.story.tell(self.world.agenda.now, self.name, f"ends: {error.message}")
            if isinstance(error, WorkerBroken):
                self._check_broken(error)
            self._on_end(self)
            return
        if self.loop.is_over:
            self._come_back()
        if self.loop.ends():
            self.loop.leave()
            self._on_end(self)
            return
        self._turn_by(self.world.agenda.now + (TURN_S if progressed else IDLE_S))
        self._on_turn(self)

    def _check_broken(self, error: WorkerBroken) -> None:
        """It may end by itself if it can compute no more, or if something was done to a rank of its group."""
        story, now = self.world.story, self.world.agenda.now
        if self.group is None:
            assert self.num_launch_failures >= TOO_MANY or self.forward.has_hung, "it can compute, and ends"
            story.fault(now, self.name, "broken", "it ends by itself")
            return
        assert isinstance(error.__cause__, GroupBroken), error.message
        assert self.group.hurt, f"nothing was done to its group, and it ends: {error.message}"
        story.fault(now, self.name, "group broken", error.message)

    # ---- its parts ----

    def _prefill(self) -> tuple[PrefillWorker, DecodeLink, WorkerAddress]:
        world, scenario = self.world, self.world.scenario
        router = Router(cast(Any, self.context), "127.0.0.1")
        memory = SourceMemory(self.executor.kv, self.planner.kv_manager.pages)
        wire = SimulatedWire(world.plane, self, memory.held)
        pools = Pools({IN_PLACE: way_into(world.pools, self, self.instance)} if scenario.in_place else {})
        sender = self.sender = FrameSender(memory, self.instance, wire, scenario.window_bytes, pools)
        address = WorkerAddress(self.worker_id, self.instance, peer=router.endpoint)
        core = PrefillWorker(
            self.planner,
            sender,
            address,
            self._fingerprint,
            world.agenda.clock,
            self._policies,
        )
        return core, DecodeLink(router, sender, self.instance, core.outbox, core.on_peer, core.on_session_lost), address

    def _decode(self) -> tuple[DecodeWorker, PrefillLink, WorkerAddress]:
        world = self.world
        memory = TargetMemory(self.executor.kv, self.planner.kv_manager.pages)
        writers = Writers(world.pools[self.process] if world.scenario.in_place else None)
        receiver = self.receiver = FrameReceiver(memory, SimulatedArrivals(world.plane, self), writers)
        address = WorkerAddress(self.worker_id, self.instance, ranks=(RankEndpoint(receiver.address),))
        first = (self.instance << 32) + 1  # so that a story names whose reservation it is
        core = DecodeWorker(
            self.planner,
            receiver,
            address,
            self._fingerprint,
            world.agenda.clock,
            self._policies,
            reservations_from=first,
        )
        context, name = cast(Any, self.context), self.name.encode()
        link = PrefillLink(context, name, receiver, core.outbox, core.on_peer, core.on_session_lost)
        return core, link, address

    @property
    def _policies(self) -> Policies:
        scenario = self.world.scenario
        return replace(scenario.policies, overlap=scenario.overlap, chunk_size=scenario.chunk_size)

    @property
    def _fingerprint(self) -> Fingerprint:
        return self.runner.fingerprint()

    def _writer_of(self, page: int) -> int | None:
        """The prefill instance that a page is reserved for."""
        assert isinstance(self.core, DecodeWorker)
        for request in self.core._requests.by_reservation.values():
            if any(req.holding and page in req.holding.pages for req in request.reqs):
                return request.prefill.instance
        return None

    def _register(self, address: WorkerAddress) -> Register:
        capacity = (self.executor.kv.num_pages - 1) * self.planner.kv_manager.page_size
        return Register(
            address,
            self.role,
            pid=self.process,
            host="host",
            layout=self.planner.layout,
            fingerprint=self._fingerprint,
            vocab_size=VOCAB,
            context_length=min(CONTEXT, capacity),
            max_running_requests=self.world.scenario.max_requests,
            max_total_tokens=capacity,
            stats=self.core.stats(),
            margin=self.planner.kv_manager.margin,
            place=self._seat.place,
        )

    def _maybe_fail(self, inp: ModelInput) -> None:
        if self.fails_next or self.fails_always:
            self.fails_next = False
            self.num_launch_failures += 1
            if self.group is not None:
                self.group.hurts(f"a forward of {self.name} raises")
            self.world.story.fault(self.world.agenda.now, self.name, "launch fails", "its forward raises")
            raise RuntimeError(INJECTED)
