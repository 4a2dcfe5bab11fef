"""The soak run: clients, rests, faults and the watch, side by side on one deployment; then it must come to rest.

work.py has the requests and their verdicts, phases.py rests, faults.py hits processes, fleet.py asks how the workers
are, watch.py judges growth.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import psutil

from bench.soak.faults import Fault, Hit, Stroke, inject, roles_of, schedule, storm
from bench.soak.fleet import Fleet
from bench.soak.phases import Counted, Rest
from bench.soak.watch import Watch
from bench.soak.work import BAD, Turn, asks, body_of, judge, turns
from loadtest.deployment import Deployment
from loadtest.http_exchange import Broken, Server, get
from loadtest.verify.answers import Answer, Ask, Heard
from loadtest.verify.asking import hear
from loadtest.verify.judge import Verdict
from protocol.errors import ConfigError
from runtime.clock import Clock

REQUEST_S = 90.0  # a request without an answer by then is lost
RECOVER_S = 120.0
HEALED_S = 60.0  # after the last fault of a storm: more than the longest wait before a start, and the start
_BREATH_S = 0.5  # pause of a client that got no answer
_AFTER_OUTAGE_S = 1.0
_MAX_TOLD = 5
_QUIET_SHARE = 0.25  # at least this share of the time between two faults has none


@dataclass(frozen=True)
class Plan:
    """A soak run, in seconds. `leaving`: share of clients that leave. `fault_every_s` 0: no faults. `pause_s`: the mean
    of the random pauses of a client. After each `work_s` nobody asks for `rest_s`; 0: somebody always does."""

    seconds: float
    clients: int
    leaving: float
    fault_every_s: float
    num_asks: int
    vocab: int
    seed: int
    roles: tuple[str, ...]  # whose processes are hit
    pause_s: float = 0.0
    work_s: float = 0.0
    rest_s: float = 0.0
    is_storm: bool = False  # faults come whether or not those before have healed


@dataclass
class Findings:
    """What happened in a run."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    error_codes: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)  # about the first wrong and lost answers
    hits: list[Hit] = field(default_factory=list)
    at_rest: bool = False
    ended_early: str = ""
    num_tokens: int = 0
    rests: list[Rest] = field(default_factory=list)
    counted: Counted = field(default_factory=Counted)
    num_missed: int = 0  # faults of a storm for which no process was there
    healed_s: float | None = None  # from the end of a storm until everything served; None: it did not, or no storm

    def counts(self) -> str:
        """The verdicts so far: `80 exact, 3 error`."""
        return ", ".join(f"{number} {verdict}" for verdict, number in self.verdicts.items() if number) or "no answers"

    def num_landed(self, fault: Fault) -> int:
        """Processes that were killed, or stopped and went on."""
        return sum(hit.landed and hit.fault is fault for hit in self.hits)

    def problems(self) -> list[str]:
        """Everything that is wrong, a line each."""
        bad = [f"{self.verdicts[word]} {word}" for word in BAD if self.verdicts[word]]
        bad += [f"{hit.fault} of {hit.role} {hit.pid} had no effect" for hit in self.hits if not hit.landed]
        unhealed = [f"no recovery from {hit.fault} of {hit.role}" for hit in self.hits if not self._is_healed(hit)]
        bad += dict.fromkeys(unhealed)
        bad += [] if self.verdicts[Verdict.EXACT] else ["not one exact answer"]
        bad += [] if self.at_rest else ["the ledger did not come to rest"]
        bad += [f"{rest.launches} launches in {rest.seconds:.0f} s of rest" for rest in self.rests if rest.launches]
        return [*bad, *([self.ended_early] if self.ended_early else [])]

    def _is_healed(self, hit: Hit) -> bool:
        return hit.recovered_s is not None or self.healed_s is not None


class Soak:
    """One run on a deployment that serves. `findings` fills meanwhile; `tell` gets a line about each fault."""

    def __init__(
        self,
        plan: Plan,
        running: Deployment,
        clock: Clock,
        watch: Watch,
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.findings = Findings()
        self._plan = plan
        self._running = running
        self._server = Server.at(running.url, "")
        self._clock = clock
        self._watch = watch
        self._tell = tell

        self._began = 0.0
        self._known: dict[Ask, Answer] = {}
        self._num_outages = 0  # of the gateway, at present
        self._outage_ended = 0.0
        self._over = asyncio.Event()
        self._may_ask = asyncio.Event()
        self._num_asking = 0
        self._nobody_asks = asyncio.Event()
        self._nobody_asks.set()
        self._fleet = Fleet(self._server, clock)

    async def learn(self) -> None:
        """Learns the answer to each ask alone and undisturbed. Then all are asked at once, streamed, and must agree."""
        await self._fleet.learn()
        for ask in asks(self._plan.seed, self._plan.num_asks, self._plan.vocab):
            heard = await self._one(Turn(ask, False, None))
            if heard.status != 200 or not heard.done:
                raise ConfigError(f"the undisturbed server gave no answer: {heard}")
            self._known[ask] = heard.answer()
        together = await asyncio.gather(*(self._one(Turn(ask, True, None)) for ask in self._known))
        for heard, expected in zip(together, self._known.values(), strict=True):
            if heard.answer() != expected:
                raise ConfigError(f"not reproducible before any fault: got {heard.answer()}, then {expected}")

    async def run(self) -> None:
        """Runs load, rests, faults and watch for the planned time, then waits for rest."""
        start = self._began = self._clock.now()
        self._may_ask.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_looking())
            rests = group.create_task(self._rest_again_and_again())
            clients = [
                group.create_task(
                    self._client(turns(self._plan.seed + 1 + number, list(self._known), self._plan.leaving))
                )
                for number in range(self._plan.clients)
            ]

            if self._plan.fault_every_s:
                await (self._storm if self._plan.is_storm else self._faults)(start)
            if not self.findings.ended_early:
                await self._until(start + self._plan.seconds)
            self._over.set()
            self._may_ask.set()
            await asyncio.gather(*clients, rests)
        await self._count()
        self.findings.at_rest = bool(await self._fleet.rows_at_rest())

    # ---- clients ----

    async def _client(self, mine: Iterator[Turn]) -> None:
        while not self._over.is_set():
            turn = next(mine)
            await self._until(self._clock.now() + turn.pause * self._plan.pause_s)
            await self._may_ask.wait()
            if self._over.is_set():
                return
            start = self._clock.now()
            heard = await self._ask(turn)
            verdict, told = judge(heard, self._known[turn.ask], self._gateway_was_out(start))
            self.findings.verdicts[verdict] += 1
            self.findings.num_tokens += sum(map(len, heard.tokens.values()))
            if verdict is Verdict.ERROR:
                self.findings.error_codes[heard.error["code"]] += 1
            if told and len(self.findings.told) < _MAX_TOLD:
                self.findings.told.append(f"{verdict} after {self._clock.now() - start:.1f} s, {turn.ask}: {told}")
            if verdict not in (Verdict.EXACT, Verdict.LEFT):
                await asyncio.sleep(_BREATH_S)

    async def _ask(self, turn: Turn) -> Heard:
        """One request. A rest begins when none is left."""
        self._num_asking += 1
        self._nobody_asks.clear()
        heard = await self._one(turn)
        self._num_asking -= 1
        if not self._num_asking:
            self._nobody_asks.set()
        return heard

    async def _one(self, turn: Turn) -> Heard:
        """One request from its beginning to its end."""
        return await hear(
            self._server,
            self._clock,
            body_of(turn.ask, turn.stream),
            stream=turn.stream,
            timeout_s=REQUEST_S,
            leave_after_s=turn.leave_after_s,
        )

    def _gateway_was_out(self, since: float) -> bool:
        return self._num_outages > 0 or self._outage_ended > since

    # ---- rests ----

    async def _rest_again_and_again(self) -> None:
        """Lets clients work and rest by turns."""
        while self._plan.rest_s:
            await self._until(self._clock.now() + self._plan.work_s)
            if self._over.is_set():
                return
            self._may_ask.clear()
            await self._nobody_asks.wait()
            await self._rest()
            self._may_ask.set()

    async def _rest(self) -> None:
        """One rest. A worker may tell of its last launches a heartbeat later, so it is at rest in two looks before."""
        await self._fleet.rows_at_rest()
        before, began = await self._fleet.rows_at_rest(), self._clock.now()
        await self._until(began + self._plan.rest_s)
        after, took_s = await self._fleet.rows_at_rest(), self._clock.now() - began
        if before and after:  # else a fault came, or the end of the run will say that there is no rest
            self.findings.rests.append(Rest.between(before, after, round(took_s, 1)))

    # ---- faults ----

    async def _faults(self, start: float) -> None:
        """Injects as many faults as the planned time has room for, each in the middle of its period. Slow recoveries
        make the run longer: no fault is left out, and some undisturbed time comes before each."""
        every = self._plan.fault_every_s
        planned = islice(schedule(self._plan.seed, self._plan.roles), int(self._plan.seconds / every))
        for number, (fault, role) in enumerate(planned):
            await self._until(max(start + (number + 0.5) * every, self._clock.now() + every * _QUIET_SHARE))
            if not await self._hit(fault, role):
                return
        await self._until(self._clock.now() + every * _QUIET_SHARE)

    async def _hit(self, fault: Fault, role: str) -> bool:
        """Injects one fault and waits for recovery. False if the deployment has ended."""
        victims = roles_of(self._running.pid).get(role, [])
        if not victims:
            self.findings.ended_early = f"no {role} process is left"
            return False
        victim = random.Random(f"{self._plan.seed}/{len(self.findings.hits)}").choice(victims)

        at = self._clock.now()
        async with self._outage_of(role):
            landed = await inject(fault, victim)
            gone = None if fault is Fault.STOP else victim.pid
            recovered = await self._fleet.recovers(gone, self._clock.now(), RECOVER_S)
        took_s = round(self._clock.now() - at, 2) if recovered else None

        self._note(hit := Hit(fault, role, victim.pid, at, landed, took_s), describe(hit))
        return not self._has_ended()

    async def _storm(self, start: float) -> None:
        """Injects each fault at its time, whether or not those before have healed. Then everything must serve in
        time."""
        plan = self._plan
        async with asyncio.TaskGroup() as group:
            for stroke in storm(plan.seed, tuple(Fault), plan.fault_every_s, plan.seconds):
                await self._until(start + stroke.at)
                group.create_task(self._strike(stroke))
        over = self._clock.now()
        if await self._fleet.recovers(None, over, HEALED_S):
            self.findings.healed_s = round(self._clock.now() - over, 2)
        if not self._has_ended():
            await self._until(self._clock.now() + plan.fault_every_s)

    async def _strike(self, stroke: Stroke) -> None:
        """One fault of a storm."""
        processes_of = roles_of(self._running.pid)
        victims = [(role, process) for role in self._plan.roles for process in processes_of.get(role, ())]
        if not victims:
            self.findings.num_missed += 1
            return
        role, victim = victims[int(stroke.draw * len(victims))]

        at = self._clock.now()
        async with self._outage_of(role):
            landed = await inject(stroke.fault, victim, stroke.stopped_s)
            if role == "gateway":
                await self._fleet.answers(RECOVER_S)
        hit = Hit(stroke.fault, role, victim.pid, at, landed)
        lasted = f" for {stroke.stopped_s:.1f} s" if stroke.fault is Fault.STOP else ""
        self._note(hit, f"{hit.fault} of {role} {victim.pid}{lasted}{'' if landed else ' had no effect'}")

    @contextlib.asynccontextmanager
    async def _outage_of(self, role: str) -> AsyncIterator[None]:
        """Connections may end for as long as the gateway does not serve, and a moment longer."""
        self._num_outages += role == "gateway"
        try:
            yield
        finally:
            if role == "gateway":
                self._num_outages -= 1
                self._outage_ended = self._clock.now() + _AFTER_OUTAGE_S

    def _note(self, hit: Hit, words: str) -> None:
        self.findings.hits.append(hit)
        self._tell(f"{hit.at - self._began:5.0f} s  {words}; so far {self.findings.counts()}")

    def _has_ended(self) -> bool:
        """Whether the deployment has ended. That is a finding."""
        if psutil.pid_exists(self._running.pid) and roles_of(self._running.pid):
            return False
        self.findings.ended_early = "the deployment ended"
        return True

    # ---- watching ----

    async def _keep_looking(self) -> None:
        while not self._over.is_set():
            self._watch.look(self._clock.now())
            await self._count()
            await self._until(self._clock.now() + 1.0)

    async def _count(self) -> None:
        """Reads /metrics, if the gateway answers."""
        with contextlib.suppress(Broken):
            status, body = await get(self._server, self._clock, "/metrics", timeout_s=5.0)
            if status == 200:
                self.findings.counted.take(body.decode())

    async def _until(self, moment: float) -> None:
        """Waits for a moment or for the end of the run."""
        try:
            async with asyncio.timeout(max(0.0, moment - self._clock.now())):
                await self._over.wait()
        except TimeoutError:
            return


def describe(hit: Hit) -> str:
    """`kill -9 of decode, served again after 4.6 s`."""
    if not hit.landed:
        return f"{hit.fault} of {hit.role} had no effect"
    took = "not recovered from" if hit.recovered_s is None else f"served again after {hit.recovered_s:.1f} s"
    return f"{hit.fault} of {hit.role}, {took}"
