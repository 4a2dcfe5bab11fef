"""One workload under one schedule, and what must be true of it: exact tokens, nothing lost, nothing held, no hang.

The streams are simulated ones, or real threads that stop and start at random (threads.py).
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from torch.utils._python_dispatch import _disable_current_modes

from model.inputs import ModelInput
from model.runner import Runner
from protocol.errors import PrefillQueueFull, QueueFull
from scheduler.execution.executor import Executor
from scheduler.execution.grammars import AnswerGrammars
from scheduler.execution.launch import Launch
from scheduler.execution.streams import Stream
from scheduler.plan import Plan
from tests.cluster import Worker
from tests.decode.driving import VOCAB, expect_rest, make_cluster
from tests.doubles.clock import VirtualClock
from tests.doubles.collectives_simulated import SimulatedGroup
from tests.doubles.hash_model import FakeRunner
from tests.doubles.late_pool import LatePool
from tests.doubles.race_detector import RaceDetector
from tests.doubles.random_work import RandomWork
from tests.doubles.strategies import Decisions, Strategy
from tests.doubles.streams_simulated import ScheduleViolation, SimulatedStream, Simulation
from tests.explore.encoded import Encoded
from tests.explore.expected import check_logprobs, check_prompt_logprobs, expected
from tests.explore.failing import INJECTED, Failures, wrap_segments
from tests.explore.groups import Groups
from tests.explore.invariants import check_invariants
from tests.explore.proposals import Proposals
from tests.explore.races import observe, observe_network, read_inputs, warm_up
from tests.explore.ranks import GRAPHED
from tests.explore.threads import Threads
from tests.explore.workload import CONTEXT, NEVER, Arrival, Workload
from tests.grammars import grammars_for

MAX_STEPS = 8_000  # four times as many as the slowest schedule that was seen to end
STUCK = 100  # steps in which nothing happens although somebody has work; no nap or row takes so long
STEP_S = 0.001  # no deadline passes


class Schedule(Protocol):
    """When device work runs. `found`: what was wrong within a segment, whose launch may have caught it."""

    found: str

    def streams(self) -> tuple[Stream, Stream]:
        """Forward, schedule: of one more worker."""
        ...

    def point(self) -> None:
        """Time passes."""
        ...

    def run_one(self) -> bool:
        """The host has nothing to do: something else has to go on."""
        ...

    def violation(self, what: str) -> ScheduleViolation:
        """An error with what happened before it."""
        ...


@dataclass(eq=False)
class Run:
    """`run` raises ScheduleViolation. A test that has its own arrivals calls start, arrive, leave, step and finish."""

    workload: Workload
    strategy: Strategy
    seed: int
    decisions: Decisions | None = None
    schedule: Schedule | None = None  # None: a simulation
    detect: bool = False  # races, in a simulation; several times slower
    num_steps: int = 0
    arrived: list[Arrival] = field(default_factory=list)
    left: set[str] = field(default_factory=set)
    executors: list[Encoded] = field(default_factory=list)
    proposals: list[Proposals] = field(default_factory=list)  # with a draft
    _num_stuck: int = 0  # steps without progress
    _pools: list[LatePool] = field(default_factory=list)  # of all workers
    _num_looks: int = 0  # at their work, until the step before
    _num_watched: int = 0  # workers
    _detector: RaceDetector | None = None
    _clock: VirtualClock = field(default_factory=VirtualClock)  # the host's would make schedules of its own

    def run(self) -> "Run":
        """The workload's arrivals, to the end."""
        self._detector = RaceDetector() if self.detect else None
        with self._detector or nullcontext():
            self._run()
        return self

    def _run(self) -> None:
        self.start()
        waiting = list(self.workload.arrivals)
        leaving = [each for each in waiting if each.cancel_at != NEVER]
        while waiting or leaving:
            for arrival in [each for each in waiting if each.at_step <= self.num_steps]:
                waiting.remove(arrival)
                self.arrive(arrival)
            for arrival in [each for each in leaving if each.at_step + each.cancel_at <= self.num_steps]:
                leaving.remove(arrival)
                self.leave(arrival)
            self.step()
        self.finish()

    def start(self) -> None:
        """A deployment without load."""
        if self.schedule is None:
            self.schedule = self.simulation = Simulation(self.strategy, self.seed, self.decisions, self._detector)
        load = self.workload
        self.failures = Failures(self.seed, load.failing, load.unbuilt, is_grouped=bool(load.groups))
        self.groups = self._groups() if load.groups else None
        draft_seed = None if load.num_steps is None else 1
        runner = FakeRunner(
            vocab_size=VOCAB,
            context_length=256,
            before_forward=self._before_forward,
            draft_seed=draft_seed,
            num_draft_layers=load.num_layers,
            has_experts=load.has_experts,
            max_graphed=GRAPHED if load.groups else 0,
        )
        seated = {} if self.groups is None else {"seat": self.groups.seat, "num_served": load.num_served}
        self.cluster = make_cluster(
            load.topology,
            runner,
            page_size=load.page_size,
            chunk_size=load.chunk_size,
            num_pages=load.num_pages,
            max_requests=load.max_requests,
            overlap=load.overlap,
            max_context=CONTEXT,
            streams=self.schedule.streams,
            clock=self._clock,
            wrap=self._encoded,
            caches=load.caches,
            margin=load.margin,
            policies=load.policies,
            num_host_pages=load.num_host_pages,
            costs=load.costs,
            staging=self._staging() if load.num_host_pages else None,
            num_steps=load.num_steps or 0,
            tree=load.tree,
            grammars=self._grammars,
            **seated,
        )
        if self.groups is not None:
            self.groups.attach(self.cluster)
            self.groups.restarted, self.failures.breaks_group = self._watch, self.groups.fails
        self._watch(self.cluster.workers)
        if self._detector is not None:
            with _disable_current_modes():
                warm_up(runner)
            observe_network(self._detector, self.cluster.network)

    def _grammars(self, runner: Runner) -> AnswerGrammars:
        """Of one more worker. A mask is there at some look; between two looks, threads may be waited for that wait for
        it."""
        load, chance = self.workload, 1.0 if isinstance(self.schedule, Threads) else self.workload.late_masks
        pools = LatePool(self.seed, chance), LatePool(self.seed + 1, chance)
        self._pools += pools
        return grammars_for(runner, *pools, RandomWork(self.seed, load.slow_masks), 1 + self.seed % 3)

    @property
    def num_late(self) -> int:
        """How often a row sat out because of its mask."""
        return sum(worker.planner.late.num_ready for worker in self.cluster.workers)

    def _groups(self) -> Groups:
        """The groups of the workload, which meet as the schedule has it."""
        sizes = self.workload.group_sizes
        if not isinstance(self.schedule, Threads):
            return Groups(sizes, SimulatedGroup, self._drop, self.seed)
        groups = Groups(sizes, self.schedule.group, self.schedule.drop, self.seed)
        self.schedule.stuck = groups.stuck
        return groups

    def _drop(self, stream: Stream) -> None:
        """The process of this simulated stream is gone."""
        assert isinstance(stream, SimulatedStream)
        self.simulation.drop(stream)

    def _watch(self, workers: Sequence[Worker]) -> None:
        """Looks at what these workers do, from their start on."""
        for worker in workers:
            executor = self.cluster.executor(worker)
            if self.workload.num_steps:
                assert isinstance(executor.runner, FakeRunner)
                varied = self.workload.varied_steps
                self.proposals.append(Proposals(worker.planner, executor.runner, varied, idle=bool(self.groups)))
            if isinstance(executor.device.schedule, SimulatedStream):  # it sees lengths behind the events it waited for
                executor.device.schedule.share(executor.future_map.new_seq_lens_buf)
            if self._detector is not None:
                observe(self._detector, worker, executor, f"worker {self._num_watched}")
            self._num_watched += 1
        if self.groups is not None:
            for group in self.groups.by_kind.values():
                group.collectives.before_call = self.failures.before_call

    def _staging(self) -> Callable[[], Stream] | None:
        """A third stream for each worker, in a simulation."""
        return partial(self.simulation.stream, "staging") if isinstance(self.schedule, Simulation) else None

    @property
    def num_spills(self) -> int:
        """How often KV went to host memory."""
        return sum(int(worker.planner.spills.counters["spills"]) for worker in self.cluster.workers)

    def arrive(self, arrival: Arrival) -> None:
        """A request comes."""
        self.arrived.append(arrival)
        params, num_replayed = arrival.params, arrival.num_replayed
        with _disable_current_modes():  # what is expected is no access
            replayed = expected(arrival.prompt, params, 0)[0][:num_replayed]
        self.cluster.assign(
            arrival.name,
            list(arrival.prompt),
            params,
            arrival.num_choices,
            replayed=replayed,
            cache_salt=arrival.cache_salt,
            priority=arrival.priority,
            prompt_logprobs=arrival.prompt_logprobs,
        )

    def leave(self, arrival: Arrival) -> None:
        """Its client leaves, or gives up one choice."""
        self.left.add(arrival.name)
        self.cluster.cancel(arrival.name, arrival.cancel_choice)

    def step(self) -> None:
        """Every worker goes on once; then the device, if nothing else can."""
        assert self.schedule is not None
        try:
            progressed = self.cluster.turn()
            self.schedule.point()
            with _disable_current_modes():  # looking is no access
                check_invariants(self.cluster)
            self.num_steps += 1
            self._clock.advance(STEP_S)
            if not progressed:
                progressed = self._run_some(self.schedule)
            if self.groups is not None:
                self._after_step(self.groups, progressed)
            assert self.num_steps < MAX_STEPS, f"the deployment hangs{self.groups.stuck() if self.groups else ''}"
        except ScheduleViolation:
            raise
        except Exception as error:
            raise self._violation(f"{type(error).__name__}: {error}") from error

    def _run_some(self, schedule: Schedule) -> bool:
        """The hosts have nothing to do. Whether the device had: it goes on by one thing for each worker of a group.
        Threads go on by themselves, and may wait for a rank that takes no turn now."""
        if self.groups is None or isinstance(schedule, Threads):
            return (self.groups is None or not self.groups.wait_for_turns) and schedule.run_one()
        ran = [schedule.run_one() for _ in self.cluster.workers]
        return any(ran)

    def _after_step(self, groups: Groups, progressed: bool) -> None:
        """A group goes on as long as somebody has work."""
        groups.after_step()
        num_looks = sum(pool.num_looks for pool in self._pools)
        is_late, self._num_looks = num_looks > self._num_looks, num_looks
        is_stuck = not (progressed or is_late or groups.are_ending or self.cluster.at_rest())
        self._num_stuck = self._num_stuck + 1 if is_stuck else 0
        assert self._num_stuck < STUCK, f"the deployment hangs{groups.stuck()}"

    def finish(self) -> None:
        """Until everything is at rest; then every token is checked."""
        while not self.cluster.at_rest():
            self.step()
        try:
            with _disable_current_modes():
                for arrival in self.arrived:
                    self._check_prompt(arrival)
                    for choice in range(arrival.num_choices):
                        self._check(arrival, choice)
            if self.groups is not None:
                self.groups.check_rest()
                self.groups.wake()
            expect_rest(self.cluster)
        except AssertionError as error:
            raise self._violation(f"wrong: {error}") from error

    def _check_prompt(self, arrival: Arrival) -> None:
        found = self.cluster.prompts[arrival.name].found
        answers = [self.cluster.answers[arrival.name, choice] for choice in range(arrival.num_choices)]
        has_ended = any(answer.finish for answer in answers)
        scores = [found[place] for place in sorted(found)]
        check_prompt_logprobs(scores, arrival.prompt, arrival.prompt_logprobs, is_whole=has_ended)

    def _check(self, arrival: Arrival, choice: int) -> None:
        cluster, name = self.cluster, arrival.name
        failure = cluster.failures.get(name)
        answer = cluster.answers[name, choice]
        tokens, reason = expected(arrival.prompt, arrival.params, choice)
        check_logprobs(answer.logprobs, arrival.prompt, arrival.params, choice, answer.ids, arrival.num_replayed)
        if answer.finish:
            assert (tuple(answer.ids), answer.finish) == (tokens, reason), f"{name}/{choice}: {answer} for {tokens}"
            return
        assert tuple(answer.ids) == tokens[: len(answer.ids)], f"{name}/{choice}: {answer}, not a start of {tokens}"
        if failure is not None and failure.code in (QueueFull.code, PrefillQueueFull.code):
            assert self.workload.policies.max_queued_requests < len(self.arrived), "there is room for all"
            assert not arrival.num_replayed and not answer.ids, f"{name} has begun, and is refused"
        elif failure is not None:
            assert name in self.failures.hit, f"{name} failed, and was in no launch that failed: {failure}"
            assert INJECTED in failure.message, failure
        else:
            assert name in self.left, f"{name}/{choice} has not ended"
            assert arrival.cancel_choice in (-1, choice), f"{name}/{choice} was cancelled, not it"

    def _before_forward(self, inp: ModelInput) -> None:
        if self._detector is not None:
            read_inputs(self._detector, inp)
        self.failures.before_forward(inp)

    def _encoded(self, executor: Executor) -> Encoded:
        """The executor behind a wire. Notes who is in each launch, for launches that fail."""
        members: dict[int, set[str]] = {}

        def submitting(plan: Plan) -> None:
            planner = next(each.planner for each in self.cluster.workers if self.cluster.executor(each) is executor)
            launched = next(each for each in planner.in_flight if each.ticket == plan.ticket)
            members[plan.ticket] = {req.request_id for req in launched.reqs}

        def noted(segment: Callable[[Launch], None], launch: Launch) -> None:
            with self.failures.computing(executor, members.pop(launch.ticket)):
                segment(launch)

        wrap_segments(executor.launcher, "verify", "compute", noted)  # they run the forward that may fail
        if self.groups is not None:
            self.groups.watch(executor)
        self.failures.watch(executor, members.__getitem__)
        self.executors.append(Encoded(executor, submitting))
        return self.executors[-1]

    def _violation(self, what: str) -> ScheduleViolation:
        assert self.schedule is not None
        found = self.schedule.violation(self.schedule.found or what if self.groups else what)
        found.add_note(f"in {self.workload}")
        return found
