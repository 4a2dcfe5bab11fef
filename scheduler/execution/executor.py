"""Runs operations on one device: KV memory, page table, the rows that decode, FutureMap, streams.

    submit -> (streams) -> completed -> poll

It knows rows and pages, no requests. The planner decides what runs. A plan waits in `submitted` until its lengths are
known, and all that follows it waits, too.
"""

from collections import deque

from model.collectives import outside_steps
from model.host_copies import HostCopies
from model.paged_kv import PagedKv
from model.runner import Runner
from protocol.errors import InternalError
from protocol.messages_group import StepShape
from runtime.clock import Clock
from scheduler.agreement import wants_graph
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.answers import Masking
from scheduler.execution.batches import draws_of
from scheduler.execution.copies import Copies
from scheduler.execution.device import Device
from scheduler.execution.future_map import FutureMap
from scheduler.execution.grammars import AnswerGrammars, no_vocabulary
from scheduler.execution.histories import Histories
from scheduler.execution.launch import Launch
from scheduler.execution.launches import MakeLaunches, PlainLaunches
from scheduler.execution.page_table import PageTable
from scheduler.execution.streams import DeviceBroken, Stream, first_line
from scheduler.execution.warm_up import warm_up
from scheduler.plan import (
    DropMask,
    ForgetGrammar,
    LayerWritten,
    LearnGrammar,
    MakeMask,
    Operation,
    Outcome,
    Plan,
    StepResult,
)


class Executor:
    """`num_rows` and `max_pages` of a context size the page table. `debug` turns on checks of invariants.

    `forward_clock` notes when forwards end; it is for a forward stream that runs on the host. `staging` copies KV
    between a device and host memory, on its own stream, so that no forward waits for such a copy. `host` is where KV of
    preempted choices is kept. `launches` makes the object that launches plans; see scheduler/speculation/modes.py.
    `rank` is its place in a group of `num_ranks`. `grammars` are those that answers follow.
    """

    def __init__(
        self,
        runner: Runner,
        kv: PagedKv,
        *,
        num_rows: int,
        max_pages: int,
        forward: Stream,
        schedule: Stream,
        staging: Stream | None = None,
        host: HostCopies | None = None,
        forward_clock: Clock | None = None,
        debug: bool = False,
        launches: MakeLaunches = PlainLaunches,
        rank: int = 0,
        num_ranks: int = 1,
        grammars: AnswerGrammars | None = None,
    ) -> None:
        self.runner = runner
        self.kv = kv
        self.page_table = PageTable(num_rows, max_pages, kv.device)
        self.future_map = FutureMap(num_rows, kv.device, debug)
        self.host = host
        self.num_ranks = num_ranks
        self.grammars = grammars or AnswerGrammars(no_vocabulary)
        self.device = Device(
            runner,
            kv,
            self.page_table,
            self.future_map,
            Histories(self.page_table.req_to_page.shape[0], kv.device),
            forward,
            schedule,
            staging or forward,
            forward_clock,
            debug,
            rank,
        )
        self.launcher = launches(self.device)
        self.copies = Copies(self.device, host, self.launcher.write_draft)
        self.running = self.launcher.no_rows()

        self.submitted: deque[Operation] = deque()  # a plan that cannot be launched yet, and what follows it
        self._applied: Plan | None = None  # its changes are made
        self._masking: Masking | None = None  # of that plan
        self.launches: deque[Launch] = deque()  # in flight

    def warm_up(self, shape: DraftShape = NO_DRAFT) -> None:
        """Compiles, loads and captures what forwards need. Called before the first launch. InternalError on failure.

        It writes into page 0, and blocks. `shape`: the draft's.
        """
        device = self.device
        device.forward.wait(device.schedule.record())  # the schedule stream has filled weights and KV memory
        num_rows, max_pages = self.page_table.req_to_page.shape
        sizes = {"max_requests": num_rows - 1, "max_pages": max_pages}
        warm_up(self.runner, self.kv, device.forward, **sizes, host=self.host, shape=shape, num_ranks=self.num_ranks)

    def run_alone(self, plan: Plan) -> StepResult:
        """Launches a plan before any that a planner has made, and waits until it is over. InternalError if it fails."""
        self.submit(plan)
        launch = self.launches[-1]
        assert launch.copy_done is not None
        launch.copy_done.synchronize()
        for written in tuple(launch.layers):
            written.event.synchronize()
        result = self.poll()[-1]
        assert isinstance(result, StepResult)
        if result.error:
            raise InternalError(f"a launch before the first request has failed: {result.error}")
        return result

    def submit(self, operation: Operation) -> None:
        """Enqueues an operation. Operations run in this order."""
        self.submitted.append(operation)
        self._enqueue_submitted()

    def poll(self) -> list[Outcome]:
        """What has happened since the last call; at most one launch is reported as over. DeviceBroken if a copy has
        failed, or if the device is broken. GroupBroken if a launch of a group has failed."""
        if self.device.copy_error is not None:
            reason = f"a copy of KV pages has failed: {first_line(self.device.copy_error)}"
            raise DeviceBroken(reason) from self.device.copy_error
        self._enqueue_submitted()
        outcomes: list[Outcome] = [*self.copies.over()] if self.copies else []
        outcomes += [*self.grammars.learnt(), *self.grammars.made()]
        oldest = self.launches[0] if self.launches else None
        is_over = oldest is not None and oldest.copy_done is not None and oldest.copy_done.done()
        if self.device.group_error is not None:  # asked last: the launch that has failed is not reported as over
            raise self.device.group_error
        for launch in self.launches:
            while launch.layers and launch.layers[0].event.done():
                outcomes.append(LayerWritten(launch.ticket, launch.layers.popleft().layer))
        if oldest is not None and is_over and not oldest.layers:  # a launch that is over adds no more layers
            self.launches.popleft()
            oldest.tell_masking(self.device.forward)
            outcomes.append(oldest.result(self.device.forward))
        return outcomes

    @property
    def running_step(self) -> int:
        """The oldest step of the group that it was given and that is not over. 0: there is none."""
        if self.launches:
            return self.launches[0].step.step
        plan = self.submitted[0] if self.submitted else None
        return plan.step.step if isinstance(plan, Plan) and plan.step is not None else 0

    @property
    def replayed_step(self) -> int:
        """The same step, if this rank replays a graph in it and all of it is enqueued. Else 0. In a step of graphs, a
        rank with chunks of prompts computes eagerly."""
        oldest = self.launches[0] if self.launches else None
        if oldest is None or (oldest.batch is not None and oldest.batch.input.extend_lens):
            return 0
        return self.running_step if oldest.step.graphs and oldest.copy_done is not None else 0

    def close(self) -> None:
        """Finishes what is in flight and ends the streams."""
        self.grammars.close()
        streams = (self.device.forward, self.device.staging, self.device.schedule)
        for stream in dict.fromkeys(streams):  # the forward stream may be the staging stream
            stream.close()

    def _enqueue_submitted(self) -> None:
        """Enqueues all that was submitted, up to a plan that cannot be launched yet. That one is only applied."""
        self._start_masks()
        while self.submitted:
            operation = self.submitted[0]
            if isinstance(operation, Plan):
                if operation is not self._applied:
                    self._apply(operation)
                if not self._newest_samples or not self.launcher.is_ready(operation, self.running, self._masking):
                    return
                step = operation.step or self._same_of_all(operation)
                self.launches.append(self.launcher.enqueue(operation, self.running, step, self._masking))
                self.running.set_input_ids_sentinel()
                self._masking = None
            elif isinstance(operation, LearnGrammar):
                self.grammars.learn(operation)
            elif isinstance(operation, ForgetGrammar):
                self.grammars.forget(operation)
            elif isinstance(operation, MakeMask):
                self.grammars.make_mask(operation.draw)
            elif isinstance(operation, DropMask):
                self.grammars.drop_mask(operation)
            else:
                self.copies.enqueue(operation)
            self.submitted.popleft()

    @property
    def _newest_samples(self) -> bool:
        """Whether the newest launch in flight samples its tokens without anything more from the host. It does as soon
        as its masks are there."""
        return not self.launches or self.launcher.sample_masked(self.launches[-1])

    def _start_masks(self) -> None:
        """Has the masks of the newest launch and of the next one made, as soon as the tokens before them are known."""
        for launch in self.launches:
            if launch.masking is not None and launch.copy_done is not None and launch.copy_done.done():
                launch.tell_masking(self.device.forward)
        if self.launches and (masking := self.launches[-1].masking) is not None:
            self.grammars.start(masking)
            self.launcher.sample_masked(self.launches[-1])
        if self._masking is not None:
            self.grammars.start(self._masking)

    def _apply(self, plan: Plan) -> None:
        """Makes the changes of a plan."""
        self._applied = plan
        if plan.grants:
            self.page_table.write(*plan.grants)
        self.running.change(plan.leaves, plan.joins)
        rows, expected = len(self.running), plan.num_decodes
        assert rows == expected, f"{rows} rows decode, the planner has {expected}"
        self.launcher.applied(plan, self.running)
        firsts, begin = draws_of(plan.chunks), [join.draw for join in plan.joins]
        self._masking = self.grammars.apply(firsts, self.running.draws, [*firsts, *begin])
        if self._masking is not None:
            self.grammars.start(self._masking)

    def _same_of_all(self, plan: Plan) -> StepShape:
        """What is launched if every rank, maybe this one alone, launches the same plan."""
        num_tokens, of_group = self.launcher.num_tokens(plan), (self.runner.max_graphed, self.num_ranks)
        graphs = wants_graph(num_tokens, *of_group, has_chunks=bool(plan.chunks))
        return outside_steps(self.num_ranks, num_tokens, graphs=graphs)
