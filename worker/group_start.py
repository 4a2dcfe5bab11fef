"""How one rank of a group starts with the others: who is there, collectives, the same model, then step by step.

    open      sockets, hellos, the process group: before the model is loaded
    compare   hellos with the model's digest: before the first forward, which all ranks compute together
    link      steps are agreed on from now on: after warm-up and step costs, which all ranks run alike

A worker of its own passes through, and waits for nobody.
"""

from model.collectives import agree
from model.group_meeting import AnyCollectives, open_collectives
from model.runner import Runner, choose_device
from protocol.fingerprint import digest_of
from runtime.clock import Clock
from runtime.process_life import StatusPipe, StopSignal
from runtime.settings import WorkerSettings
from scheduler.agreement import Agreement
from scheduler.execution.executor import Executor
from worker.group_link import GroupLink
from worker.group_watch import JOIN_S
from worker.parts import PeerLink
from worker.rank_sockets import RankSockets


class GroupStart:
    """The start of the worker with these settings. Each step is False if a stop signal has come meanwhile.

    A rank that differs from the others is a ConfigError, one that never comes is Unavailable: one sentence each.
    """

    def __init__(self, settings: WorkerSettings, status: StatusPipe, stop: StopSignal, clock: Clock) -> None:
        self.place = settings.place
        self.agreement = None if self.is_alone else Agreement(self.place.epoch, self.place.rank, self.place.size)
        self.collectives: AnyCollectives | None = None  # once it is open
        self._sockets: RankSockets | None = None
        self._settings, self._status, self._stop, self._clock = settings, status, stop, clock

    @property
    def is_alone(self) -> bool:
        """Whether there are no other ranks."""
        return self.place.size == 1

    def open(self) -> bool:
        """Meets the other ranks, and opens what they compute together with. In debug mode it checks each collective."""
        if self.is_alone:
            return True
        self._status.loading("waiting for other ranks")
        folder, is_debug = self._settings.group_folder, self._settings.log_level == "debug"
        self._sockets = RankSockets(self.place, folder)
        if not self._sockets.meet("", self._stop, self._clock):
            return False
        device = choose_device("cpu" if self._settings.fake_model else self._settings.device)
        self.collectives = open_collectives(self.place, folder, device, debug=is_debug, timeout_s=JOIN_S)
        return True

    def compare(self, runner: Runner) -> bool:
        """Waits until the other ranks have loaded the same model. Then all enter a first collective, because NCCL takes
        memory for it: KV is sized by what is left."""
        if self._sockets is None or self.collectives is None:
            return True
        self._status.loading("waiting for other ranks")
        if not self._sockets.meet(digest_of(runner.fingerprint()), self._stop, self._clock):
            return False
        agree(self.collectives, True, runner.device)
        return True

    def link(self, executor: Executor) -> PeerLink:
        """The link of the rank that serves. It hears of steps from now on."""
        if self._sockets is None or self.agreement is None:
            return PeerLink()
        assert self.collectives is not None, "the ranks have met"
        sees = Sees(self.collectives, executor)
        return GroupLink(self._sockets, self.agreement, self._clock, sees.running, sees.doing, sees.waits)


class Sees:
    """What this rank can tell the others of its forwards."""

    def __init__(self, collectives: AnyCollectives, executor: Executor) -> None:
        self._collectives, self._executor = collectives, executor

    def running(self) -> int:
        """See Executor.running_step."""
        return self._executor.running_step

    def doing(self) -> str:
        """The collective that it is in, or the graph that it replays. "": neither."""
        step = self._executor.replayed_step
        return self._collectives.doing or (f"the graph of step {step}" if step else "")

    def waits(self) -> bool:
        """See RankBeat."""
        return self._collectives.waits
