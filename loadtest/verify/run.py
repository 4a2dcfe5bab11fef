"""A run of `baton verify`: the quiet phase, phases under load, and the server at rest again.

The decisions are elsewhere: phases.py says what is asked, judge.py and ties.py what an answer is worth, bounds.py when
the run must end. After each phase the answers that parted from the known ones are scored alone.
"""

import asyncio
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadtest.drive.server import metrics
from loadtest.verify.answers import Choice, Heard
from loadtest.verify.books import Gauges, at_rest, leaks
from loadtest.verify.bounds import Pace
from loadtest.verify.canary import Canary
from loadtest.verify.client import Client
from loadtest.verify.findings import QUIET, Finding, Result, curl, parted
from loadtest.verify.judge import (
    DEFECTS,
    UNCLEAR,
    Judged,
    Place,
    Verdict,
    after_scoring,
    judge,
    judge_alone,
    judge_scored,
)  # fmt: skip
from loadtest.verify.phases import CALM, Known, Made, Phase, Step, rounds
from loadtest.verify.quiet import REPEAT, Tried, calibrate, contradictions, early, hung_after, unsettled
from loadtest.verify.scoring import Scorer
from loadtest.verify.ties import Noise
from protocol.errors import ConfigError, brief

REST_LOOKS, REST_S = 8, 1.0
BAD_ANSWERS = (*DEFECTS, *UNCLEAR)
_TO_SCORE = (Verdict.TIED, Verdict.SUSPECT, Verdict.CANNOT_JUDGE)
_PASSES = 2  # of the quiet phase, at most: the second one must stay within what the first one showed


@dataclass(frozen=True)
class Plan:
    """What the user asked for. `extra`: phases that must be asked for. `noises`: a calibration of an earlier run."""

    made: Sequence[Made]
    seed: int
    extra: tuple[str, ...] = ()
    fault: str = ""
    churn: float = 1.0
    only: str | None = None
    noises: dict[str, Noise] | None = None


class Run:
    """One run. `show` is called after each request with the phase's name."""

    def __init__(
        self, client: Client, plan: Plan, scorers: Sequence[Scorer], result: Result, show: Callable[[str], None]
    ) -> None:
        self.result = result
        self._client, self._plan, self._scorers, self._show = client, plan, scorers, show
        self._known: list[Known] = []
        self._canary = Canary()
        self._may_stop = False

    async def run(self) -> Result:
        """From the quiet phase to the server's rest."""
        client, plan, result = self._client, self._plan, self.result
        before = at_rest(await metrics(client.server, client.clock))
        await self._learn()
        if not self._known:
            result.unsure.append("the quiet server gave no answer that can be judged")
            return result

        if not (names := self._names()):
            result.unsure.append(f"this server cannot be asked as the phase {plan.only} asks")
            return result

        for phase in rounds(self._known, plan.seed, client.bounds.together, names, plan.churn):
            result.stopped = client.spent.suffering()
            result.ended = client.over
            if result.stopped or result.ended:
                break
            await (self._fault(phase) if phase.name == "fault" else self._phase(phase))
        await self._rest(before)
        return result

    def _names(self) -> list[str]:
        """The phases of a round. Sampled answers need an oracle that scores what the server claims."""
        names = [self._plan.only] if self._plan.only else [*CALM, *self._plan.extra]
        noises = [self.result.noises[scorer.name] for scorer in self._scorers]
        can_sample = any(noise.has_drift and not noise.why for noise in noises)
        left_out = {"sampled": not can_sample, "choices": not self._client.dialect.has_choices}
        return [name for name in names if not left_out.get(name)]

    # ---- quiet ----

    async def _learn(self) -> None:
        """Known answers and near ties. With a calibration each request is asked once."""
        given = self._plan.noises
        tried = [await self._try(made, 1 if given else 3) for made in self._plan.made if not self._client.over]
        names = [scorer.name for scorer in self._scorers]
        noises = given or calibrate(tried, names)
        for _ in range(_PASSES - 1):
            if given or not unsettled(noises):
                break
            more = [await self._try(made, 2) for made in self._plan.made]
            noises = calibrate([*tried, *more], names)
        for name in unsettled(noises) if not given else ():
            self.result.unsure.append(f"the noise of {name} has not settled")
        self.result.unsure += [f"{name}: {noise.why}" for name, noise in noises.items() if noise.why]

        self.result.noises = noises
        self._client.hung_s = hung_after(tried, self._client.bounds.hung_s)
        self._client.early_s = early(tried)
        has_stopped = any(choice.finish == "stop" for one in tried for choice in one.answers)
        self._may_stop = has_stopped or "ignore_eos" in self._client.dialect.refused
        for one in tried:
            self._know(one)

    async def _try(self, made: Made, times: int) -> Tried:
        """One request alone: without a cache, then with it, then streamed. Each distinct answer is scored."""
        tried = Tried(made)
        for time in range(times):
            tried.heards.append(await self._client.ask(made.ask, stream=time == 2, is_cold=time == 0))
            self._show(QUIET)
        for choice in tried.distinct:
            for scorer in self._scorers:
                if scored := await self._score(scorer, made.ask.prompt, choice):
                    tried.scores.setdefault(scorer.name, {})[choice.tokens] = scored
        return tried

    def _know(self, tried: Tried) -> None:
        """Judges the quiet answers to one request. The first one that is right is the known one."""
        number, ask = len(self._known), tried.made.ask
        right: Choice | None = None
        is_alone = not self._scorers and bool(contradictions(tried.answers))  # which one is right, nothing tells
        for heard in tried.heards:
            judged = judge_alone(heard, ask.max_tokens, may_stop=True)
            choice = heard.answer().get(0)
            if judged.verdict is Verdict.EXACT and choice is not None:
                judged = self._by_scores(choice, tried)
                if judged.verdict is Verdict.EXACT and right is not None:
                    judged = judge(heard, {0: right}, self.result.noises[REPEAT].tau, may_stop=self._may_stop)
                elif judged.verdict is Verdict.EXACT:
                    right = choice
            self._client.spent.errors += judged.verdict is Verdict.ERROR
            if is_alone and judged.verdict is Verdict.WRONG:
                judged = replace(judged, verdict=Verdict.CANNOT_JUDGE)
            self._note(QUIET, Step(ask, number), heard, judged, right)
        if right is not None:
            self._known.append(Known(tried.made, right))
            self._canary.add(number, tried.made.needle, right.tokens)

    def _by_scores(self, choice: Choice, tried: Tried) -> Judged:
        """What the scores of the quiet phase say of an answer."""
        judged = Judged(Verdict.EXACT)
        for name, scores in tried.scores.items():
            noise = self.result.noises.get(name)
            if noise is not None and not noise.why and choice.tokens in scores and judged.verdict is Verdict.EXACT:
                judged = judge_scored(
                    choice, scores[choice.tokens], noise.tau, is_greedy=True, has_drift=noise.has_drift
                )
        return judged

    # ---- under load ----

    async def _phase(self, phase: Phase, *, is_excused: bool = False) -> None:
        """Sends the requests of a phase together, then scores alone what is in question."""
        pace = Pace(phase.rate, 1) if phase.rate else None
        client = self._client

        async def one(step: Step) -> Heard:
            heard = await client.ask(
                step.ask, stream=step.stream, is_cold=step.is_cold, leave_after=step.leave_after, pace=pace
            )
            self._show(phase.name)
            return heard

        heards = await asyncio.gather(*(one(step) for step in phase.steps))
        for step, heard in zip(phase.steps, heards, strict=True):
            judged = self._judged(step, heard, is_excused=is_excused)
            if judged.verdict in _TO_SCORE or (not step.is_judged and judged.verdict is Verdict.EXACT):
                judged = await self._scored(step, heard, judged)
            self._note(phase.name, step, heard, judged, step.right(self._known)[0] if step.is_judged else None)
            if phase.name != "fault":
                client.spent.errors += judged.verdict is Verdict.ERROR
            if phase.name == "load" and heard.first_s is not None:
                client.spent.ttfts.append(heard.first_s)

    def _judged(self, step: Step, heard: Heard, *, is_excused: bool) -> Judged:
        if step.is_judged:
            noise = self.result.noises[REPEAT]
            judged = judge(heard, step.right(self._known), noise.tau, may_stop=self._may_stop, is_excused=is_excused)
            is_by_tokens = judged.place is not None and judged.verdict in (Verdict.WRONG, Verdict.SUSPECT)
            return replace(judged, verdict=Verdict.CANNOT_JUDGE) if noise.why and is_by_tokens else judged
        return judge_alone(heard, step.ask.max_tokens, may_stop=self._may_stop, is_excused=is_excused)

    async def _scored(self, step: Step, heard: Heard, judged: Judged) -> Judged:
        """The verdict of all oracles that score. If they find an answer right, a near tie explains where it parted."""
        is_greedy, said = not step.ask.temperature, []
        for scorer in self._scorers:
            noise = self.result.noises[scorer.name]
            for number, choice in heard.answer().items() if not noise.why else ():
                if scored := await self._score(scorer, step.ask.prompt, choice):
                    by_score = judge_scored(choice, scored, noise.tau, is_greedy=is_greedy, has_drift=noise.has_drift)
                    said.append(replace(by_score, choice=number, why=f"{scorer.name}: {by_score.why}"))
        return after_scoring(judged, said, is_known=step.is_judged)

    async def _score(self, scorer: Scorer, prompt: Sequence[int], choice: Choice) -> list[Place] | None:
        ids = [token for token in choice.tokens if isinstance(token, int)]
        if not ids or len(ids) < len(choice.tokens):
            return None
        if scorer.name != "folder":
            await self._client.turn(len(prompt) + len(ids))
        self.result.num_scored += 1
        return await scorer.score(prompt, ids)

    async def _fault(self, phase: Phase) -> None:
        """Runs the user's command beside requests. They may end in errors, and never in wrong tokens."""
        client, words = self._client, shlex.split(self._plan.fault)
        try:
            child = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL)
        except OSError as error:
            raise ConfigError(f"--fault: cannot run {brief(words[0])}: {error}", param="fault") from error
        ending = asyncio.create_task(child.wait())
        while not ending.done() and not client.over:
            await self._phase(phase, is_excused=True)
        await asyncio.wait({ending}, timeout=max(0.0, client.bounds.seconds - (client.clock.now() - client.began_s)))
        if not ending.done():
            child.kill()
        if status := await ending:
            self.result.unsure.append(f"the command of --fault ended with status {status}: the fault may not have come")
        await self._phase(phase, is_excused=True)

    # ---- verdicts ----

    def _note(self, phase: str, step: Step, heard: Heard, judged: Judged, known: Choice | None) -> None:
        """Counts a verdict. A bad one becomes a finding with both texts and the request."""
        for number, choice in heard.answer().items():
            is_wrong = judged.verdict in BAD_ANSWERS
            if owner := self._canary.owner(choice.tokens, step.known, is_wrong=is_wrong):
                reason = "; ".join(filter(None, (owner, judged.why)))
                judged = replace(judged, verdict=Verdict.FOREIGN, why=reason, choice=number)
                break
        self.result.num_tokens += heard.num_tokens
        finding = None
        if judged.verdict in BAD_ANSWERS:
            got = heard.answer().get(judged.choice, Choice(()))
            server, body = self._client.server, self._client.dialect.body(step.ask, step.stream, "")
            again = curl(str(server), body, bool(server.key))
            words = parted(got, known, judged.place)
            finding = Finding(judged.verdict, phase, judged.why, judged.place, judged.margin, *words, again)
        self.result.add(phase, judged, finding)

    async def _rest(self, before: Gauges) -> None:
        """Looks at the gauges until the server is at rest, or has stood still above that."""
        client, looks = self._client, []
        for _ in range(REST_LOOKS if before else 0):
            looks.append(at_rest(await metrics(client.server, client.clock)))
            if not any(looks[-1].values()):
                return
            await asyncio.sleep(REST_S)
        for leak in leaks(before, looks[len(looks) // 2 :]):
            self.result.add("rest", Judged(Verdict.LEAKED), Finding(Verdict.LEAKED, "rest", leak))
