"""One world from its seed to its end: a deployment, its requests, its faults, and the rules that must hold.

    requests and faults ... all is quiet ... everything at rest ... a few more requests, which nothing disturbs ... rest

After every turn of a process its ledger is checked (ledger.py); clients check each token (clients.py). What it does not
know: how anything is simulated.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

from gateway.routing.members import HowLost
from gateway.routing.retries import MOST_ENDED_WORKERS
from gateway.words.prompt import Prompt
from protocol.errors import BatonError, GrammarFault, LaunchFailed, Overloaded, Preemption, PrefillQueueFull, QueueFull
from protocol.messages_gateway import Role
from tests.explore_handoff.agenda import Agenda
from tests.explore_handoff.clients import Client
from tests.explore_handoff.data_plane import DataPlane
from tests.explore_handoff.faults import KINDS
from tests.explore_handoff.gateway import GatewayProcess
from tests.explore_handoff.groups import STARTS_S, Group, Groups
from tests.explore_handoff.ledger import cached, check_gateway, check_worker, holders, owed, unrest
from tests.explore_handoff.network import Network, Weather
from tests.explore_handoff.scenario import Arrival, Fault, Scenario
from tests.explore_handoff.seats import RankSeat, Seat
from tests.explore_handoff.story import Story
from tests.explore_handoff.vintages import Vintages
from tests.explore_handoff.workers import Surroundings, WorkerProcess
from tests.grammars import text_named

HELLO_S, HANDOVER_S, DELIVERY_S = 2.0, 5.0, 12.0  # instead of 30, 120 and 600
NEVER_S = 1e6  # instead of the last two where only connections break, which needs no deadline to be noticed
DRAIN_S = 4.0  # instead of 60
REST_S = 45.0  # after the last fault, by which everything is at rest
MILD_REST_S = 10.0  # the same where nothing is lost: no deadline need pass
CANCELLED_S = 1.0  # after a client has left a mild world, by which nobody knows of its request
FLUSHED_S = 2.0  # for every worker to answer
NOTICED_S = 3.0  # by then every broken connection is known at both ends
MOST_MORE = 8  # requests when all is over: two for each pair, unless there are groups
LOOK_S = 0.2  # how often it is looked whether everything is
FAILURES = frozenset({"unavailable", "worker_lost", "worker_left", "kv_not_delivered", "gateway_gone"})


class Violation(AssertionError):
    """A rule was broken. Its text is the rule and the story."""


def blames_its_grammar(client: Client) -> bool:
    """Whether a client was told that workers have ended while they followed its grammar, and as many have."""
    if client.error != GrammarFault.code or client.record is None or client.control is None:
        return False
    ended = {key.worker_id for key, loss in client.control.membership.losses.items() if loss.how is HowLost.ENDED}
    num_ended = sum(any(name in ended for name in pair.split("+")) for pair in client.record.pairs)
    return bool(client.record.prompt.grammar) and num_ended >= MOST_ENDED_WORKERS


class World:
    """`run` raises Violation. `story.happened` tells what the faults did; `outcomes` counts the ends of requests."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.story = Story()
        self.clients: list[Client] = []
        self.workers: list[WorkerProcess] = []
        agenda = self._agenda = Agenda()
        rng = random.Random(f"world {scenario.seed}")
        network = Network(agenda, self.story, Weather(rng, scenario.delay_s))
        plane = DataPlane(network, scenario.fate, rng)
        vintages = Vintages(agenda, self.story.happened, self._is_member)
        self.surroundings = Surroundings(scenario, agenda, self.story, network, plane, rng, vintages)
        self._flushes: list[tuple[float, asyncio.Event]] = []  # under way: when it began, and what says that it is over
        self._num_restarting = 0
        self._launch_failures = 0
        self._begun: list[WorkerProcess] = []
        ranks_rng = random.Random(f"ranks {scenario.seed}")
        self.groups = Groups(agenda, self.story, ranks_rng, self._start_ranks, self._kill_ranks)
        self.gateway = GatewayProcess(self.surroundings, 1, self._gateway_turned)
        for role, num_workers, num_ranks in (
            (Role.PREFILL, scenario.num_prefills, scenario.prefill_ranks),
            (Role.DECODE, scenario.num_decodes, scenario.decode_ranks),
        ):
            for index in range(num_workers):
                self._start(role, f"{role}-{index}")
            if num_ranks:
                self.groups.begin(role, str(role), num_ranks)

    @property
    def outcomes(self) -> Counter[str]:
        """How requests ended."""
        return Counter(client.outcome for client in self.clients)

    @property
    def num_retries(self) -> int:
        """Attempts after one that failed, of the present gateway."""
        retries = self.gateway.control.dispatch.retries.counts
        return retries.total() - retries[Preemption.code] - self._num_refused

    @property
    def _num_refused(self) -> int:
        retries = self.gateway.control.dispatch.retries.counts
        return retries[QueueFull.code] + retries[PrefillQueueFull.code]

    def run(self) -> None:
        """To the end."""
        with _constants(self.scenario):
            try:
                self._run()
                self.story.happened["retracted"] += self.gateway.control.dispatch.retries.counts[Preemption.code]
                self.story.happened["refused"] += self._num_refused
                self.story.happened["overloaded"] += self.outcomes[Overloaded.code]
                self.story.happened["spilled"] += sum(
                    int(each.planner.spills.counters["spills"]) for each in self._begun
                )
            except Violation:
                raise
            except Exception as error:
                raise self._violation(error) from error

    # ---- phases ----

    def _run(self) -> None:
        for arrival in self.scenario.arrivals:
            self._agenda.at(arrival.at, self._asker(arrival))
        for fault in self.scenario.faults:
            self._agenda.at(fault.at, self._doer(fault))
        for moment in self.scenario.flushes:
            self._agenda.at(moment, self._flush)
        self._until(self.scenario.over_at)
        self._calm()
        self._until_rest()
        if self.scenario.faults:  # some of what they did is noticed only now
            self._until(self._agenda.now + NOTICED_S)
            self._until_rest()
        self._check_outcomes()
        self._afterglow()
        self._flush()
        self._until(self._agenda.now + FLUSHED_S)
        assert not self._flushes, "nothing disturbs a flush, and it is not over"
        assert not [*cached(self.workers)], "; ".join(cached(self.workers))

    def _afterglow(self) -> None:
        """Whatever has happened, nothing of it is left: requests are served as on the first day."""
        num_retries, num_before = self.num_retries, len(self.clients)
        roles = Counter(worker.role for worker in self.workers)
        num_more = min(MOST_MORE, 2 * roles[Role.PREFILL] * roles[Role.DECODE])
        for index in range(num_more):
            arrival = self.scenario.arrivals[index % len(self.scenario.arrivals)]
            self._ask(replace(arrival, name=f"after-{index}", leaves_at=None))
        self._until_rest()
        for client in self.clients[num_before:]:
            assert client.error in self._refusals, (
                f"nothing disturbs {client.arrival.name}, and it fails with {client.error}"
            )
        assert self.num_retries == num_retries, "nothing disturbs requests, and some are retried"

    def _calm(self) -> None:
        """Nothing more goes wrong; what has begun goes on to its end."""
        self.surroundings.plane.is_calm = True
        for worker in self.workers:
            worker.fails_next = worker.fails_always = worker.forward.hangs = False
            worker.context.num_to_refuse = 0

    def _until(self, moment: float) -> None:
        while self._agenda.now < moment:
            self._agenda.step()

    def _until_rest(self) -> None:
        deadline = self._agenda.now + (MILD_REST_S if self.scenario.is_mild else REST_S)
        while not self._is_at_rest():
            self._until(self._agenda.now + LOOK_S)
            if self._agenda.now > deadline:
                waiting = [client.arrival.name for client in self.clients if not client.is_done]
                held = [*unrest(self.workers, self.gateway.control), *owed(self.workers), *self.groups.unrest()]
                raise AssertionError(f"no rest: waiting {waiting}; {'; '.join(held)}")
        self.groups.check_rest([*self.workers])

    def _is_at_rest(self) -> bool:
        return (
            not self._num_restarting
            and not self.groups.num_ending
            and all(client.is_done for client in self.clients)
            and self.gateway.alive
            and not self.surroundings.network.weather.is_bad(self._agenda.now)
            and not self.gateway.is_paused
            and all(worker.paused_until <= self._agenda.now for worker in self.workers)
            and len(self.gateway.control.membership.members) == len(self.workers)
            and next(unrest(self.workers, self.gateway.control), None) is None
            and next(owed(self.workers), None) is None
        )

    def _check_outcomes(self) -> None:
        allowed = FAILURES | self._refusals | ({LaunchFailed.code} if self._num_launch_failures else set())
        for client in self.clients:
            is_allowed = client.outcome in ("done", "left") or client.error in allowed or blames_its_grammar(client)
            assert is_allowed, f"fails with {client.error}"
            if self.scenario.is_mild:
                assert client.error in self._refusals, f"nothing disturbs {client.arrival.name}: {client.error}"
        assert not self.scenario.is_mild or not self.num_retries, "nothing disturbs requests, and some are retried"

    @property
    def _refusals(self) -> set[str]:
        """The errors of a client that nothing disturbs: none, unless few may wait."""
        may_refuse = self.scenario.policies.max_queued_requests < len(self.clients)
        return {"", Overloaded.code} if may_refuse else {""}

    @property
    def _num_launch_failures(self) -> int:
        return sum(process.num_launch_failures for process in self._begun)

    def _is_member(self, instance: int) -> bool:
        """Whether the gateway takes a worker's answers."""
        members = self.gateway.control.membership.members
        return self.gateway.alive and any(member.registered.address.instance == instance for member in members)

    # ---- requests ----

    def _asker(self, arrival: Arrival) -> Callable[[], None]:
        return lambda: self._ask(arrival)

    def _ask(self, arrival: Arrival) -> None:
        """The gateway takes the request, or says at once that it cannot."""
        gateway, agenda = self.gateway, self._agenda
        if gateway.alive and gateway.is_paused:
            agenda.at(gateway.paused_until, self._asker(arrival))
            return
        client = Client(arrival, agenda, self.story)
        self.clients.append(client)
        if not gateway.alive:
            client.gateway_is_gone()
            return
        self.story.tell(agenda.now, f"client {arrival.name}", f"asks, {arrival.num_choices} choices")
        try:
            salt, priority = arrival.cache_salt, arrival.priority
            prompt = Prompt(arrival.prompt, arrival.params, arrival.num_choices, cache_salt=salt, priority=priority)
            grammar, scored = text_named(arrival.params.grammar), arrival.prompt_logprobs
            prompt = replace(prompt, grammar=grammar, prompt_logprobs=scored)
            client.record = gateway.control.dispatch.assign(arrival.name, prompt, client)
            client.control = gateway.control
        except BatonError as error:
            client.fail(error)
        if arrival.leaves_at is not None:
            agenda.at(arrival.leaves_at, lambda: self._leave(client))
        self._gateway_turned()

    def _flush(self) -> None:
        """POST /flush_cache."""
        if not self.gateway.alive:
            return
        if self.gateway.is_paused:
            self._agenda.at(self.gateway.paused_until, self._flush)
            return
        self.story.fault(self._agenda.now, self.gateway.name, "flush", "of every cache")
        self._flushes.append((self._agenda.now, self.gateway.control.begin_flush().done))
        self._gateway_turned()

    def _leave(self, client: Client) -> None:
        if self.gateway.is_paused:
            self._agenda.at(self.gateway.paused_until, lambda: self._leave(client))
        else:
            client.leave(client.arrival.leaves_choice)
            self._gateway_turned()
            if client.has_left and self.scenario.is_mild:
                self._agenda.after(CANCELLED_S, lambda: self._check_forgotten(client))

    def _check_forgotten(self, client: Client) -> None:
        found = holders(self.workers, client.arrival.name)
        assert not found, f"{client.arrival.name} was cancelled {CANCELLED_S} s ago and is still held by {found}"

    # ---- processes ----

    def kill(self, worker: WorkerProcess, restart_s: float, *, silently: bool) -> None:
        """See faults.Stage."""
        worker.end(silently)
        self.workers.remove(worker)
        if worker.group is not None:
            self.groups.end(worker.group, restart_s, silently=silently)
            return
        self._num_restarting += 1

        def again() -> None:
            self._num_restarting -= 1
            self._start(worker.role, worker.worker_id)

        self._agenda.after(restart_s, again)

    def kill_gateway(self, restart_s: float) -> None:
        """See faults.Stage."""
        if not self.gateway.alive:
            return
        number = self.gateway.control.membership.gateway_instance
        self.gateway.end()
        self._flushes.clear()
        for client in self.clients:
            if not client.is_done:
                client.gateway_is_gone()
        self._num_restarting += 1

        def again() -> None:
            self._num_restarting -= 1
            self.gateway = GatewayProcess(self.surroundings, number + 1, self._gateway_turned)

        self._agenda.after(restart_s, again)

    def _start_ranks(self, group: Group) -> None:
        for rank in range(group.collectives.size):
            self._start(group.role, f"{group.name}.{rank}", RankSeat(group))
            self.workers[-1].pause(STARTS_S * group.rng.random())

    def _kill_ranks(self, group: Group, silently: bool) -> None:
        for worker in [each for each in self.workers if each.group is group]:
            worker.end(silently)
            self.workers.remove(worker)

    def _start(self, role: Role, worker_id: str, seat: Seat | None = None) -> None:
        process = WorkerProcess(self.surroundings, role, worker_id, check_worker, self._ended, seat)
        self.workers.append(process)
        self._begun.append(process)
        self.story.tell(self._agenda.now, process.name, "starts")

    def _ended(self, process: WorkerProcess) -> None:
        """By itself: it was refused, or has left. Another one is started in its place."""
        self.kill(process, 0.3, silently=False)

    def _gateway_turned(self) -> None:
        check_gateway(self.gateway.control)
        vintages = self.surroundings.vintages
        for began, done in self._flushes:
            if done.is_set():
                vintages.flushed_at = max(vintages.flushed_at, began)
        self._flushes = [each for each in self._flushes if not each[1].is_set()]

    def _doer(self, fault: Fault) -> Callable[[], None]:
        return lambda: KINDS[fault.kind](self, random.Random(fault.seed))

    def _violation(self, error: Exception) -> Violation:
        text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        scenario = replace(self.scenario, arrivals=(), faults=())
        return Violation(f"{self._agenda.now:.4f}: {text}\n{self.story.text()}\nin {scenario}")


@contextmanager
def _constants(scenario: Scenario) -> Iterator[None]:
    """The product's sizes and deadlines, made small; and its log, silent."""
    handover_s, delivery_s = (NEVER_S, NEVER_S) if scenario.breaks_only_connections else (HANDOVER_S, DELIVERY_S)
    small = {
        "decode.prefill_peers.HELLO_DEADLINE_S": HELLO_S,
        "decode.requests.HANDOVER_DEADLINE_S": handover_s,
        "decode.requests.HANDOVER_S_PER_TOKEN": 0.0,
        "prefill.worker.DELIVERY_DEADLINE_S": delivery_s,
        "worker.group_watch.COLLECTIVE_S": scenario.collective_s,
        "worker.loop.DRAIN_S": DRAIN_S,
        "prefill.decode_peers.JOB_TOKENS": scenario.job_tokens,
        "transfer.sending.frame_sender.FRAME_BYTES": scenario.frame_bytes,
        "transfer.sending.frame_sender.IN_PLACE_FRAME_BYTES": scenario.frame_bytes,
        "transfer.sending.payloads.GATHER_BELOW": scenario.gather_below,
    }
    log = logging.getLogger("baton")
    level = log.level
    with ExitStack() as stack:
        for name, value in small.items():
            stack.enter_context(patch(name, value))
        log.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            log.setLevel(level)
