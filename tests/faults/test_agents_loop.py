"""An agent's loop survives `kill -9` of a worker inside the arguments of each turn's call: it is the calm one.

The decode worker is held behind a token of the arguments that the calm loop tells, the client has all up to it, and
then the worker dies.
"""

import os
import random
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

import pytest

from tests.e2e.baton_process import PATIENCE_S, PROJECT, BatonProcess
from tests.faults.agent import Agent, Turn, follows
from tests.faults.arming import Arming
from tests.faults.deployment import process_name, state_of, wait_until
from tests.selecting import broad, full

pytestmark = [pytest.mark.faults, pytest.mark.slow]
TEMPLATE = str(PROJECT / "tests/gateway/golden/tools.jinja")
FLAGS = (
    f"serve --port 0 --dtype float32 --chat-template {TEMPLATE} --reasoning-parser none --hang-limit 0 --retry-wait 600"
)
SOME = "--prefill 2 --decode 2 --max-total-tokens 8192"
RANKS = "--prefill 1 --decode 2 --dp-size 2 --enable-dp-attention --max-total-tokens 4096"
LITTLE = "--prefill 1 --decode 2 --context-length 2000 --max-total-tokens 2048 --num-reserved-decode-tokens 16"
MARKER_LEN = 120  # tokens of a prompt that tell its agent from others
ROOM = 8  # tokens: more than one delivery has, also with a draft
MOST_ROUNDS = 20  # of each agent of the company, until some request was preempted


@dataclass(frozen=True)
class Loop:
    """One loop, on its own deployment. `company`: agents beside it, whose workers die as well. `preempts`: what counts
    requests that were preempted; they go on until there are some. "": memory is enough."""

    seed: int
    flags: str = SOME
    company: int = 0
    num_turns: int = 8
    preempts: str = ""

    def __str__(self) -> str:
        return f"loop{self.seed}"


VARIANTS = {
    "drafts": Loop(101, f"{SOME} --speculative-algorithm eagle --speculative-adaptive false"),
    "ranks": Loop(102, RANKS),
    "memory": Loop(103, LITTLE, company=5, preempts="request_retries_total reason=retracted"),
    "memory-host": Loop(104, f"{LITTLE} --retract-to host", company=5, preempts="kv_spills_total"),
    "unified": Loop(105, "--prefill 0 --decode 0 --unified 2"),
}
LOOPS = [Loop(0, num_turns=4), *(full(Loop(seed)) for seed in range(1, 61))]


@contextmanager
def serving(loop: Loop, folder: Path) -> Iterator[tuple[BatonProcess, Arming]]:
    arming = Arming(folder / "faults")
    argv = [*FLAGS.split(), *loop.flags.split()]
    with BatonProcess(*argv, log=folder / "log", variables=arming.variables) as baton:
        yield baton, arming


class Preempted:
    """Whether requests were preempted. `counter`: a metric and its labels; "": none need be. A worker's counters end
    with it, so each look counts."""

    def __init__(self, baton: BatonProcess, counter: str) -> None:
        self._baton = baton
        self._name, *labels = counter.split() or [""]
        self._labels = dict(label.split("=") for label in labels)
        self._was_seen = not counter
        assert not counter or not self.look(), "some were preempted before"

    def look(self) -> bool:
        """Whether some were until now."""
        self._was_seen = self._was_seen or self._baton.metric(self._name, **self._labels) > 0
        return self._was_seen


class Killer:
    """Kills one worker in a turn, behind a token of its arguments. `calm`: what the turn says without that."""

    def __init__(
        self,
        baton: BatonProcess,
        arming: Arming,
        marker: list[int],
        calm: Turn,
        rng: random.Random,
        preempted: Preempted,
    ) -> None:
        self._baton, self._arming, self._calm, self._preempted = baton, arming, calm, preempted
        self._after = rng.choice(calm.inside(ROOM))
        roles = {worker["role"] for worker in baton.workers()}
        self.victim = rng.choice(sorted(roles - {"prefill"}) * 2 + sorted(roles & {"prefill"}))
        self.num_retries = 0  # those that the death makes necessary, at least
        self.fired = 0
        arming.arm("decoding", marker, self.victim, 0, pids_of(baton), num_outputs=self._after, hold_s=PATIENCE_S)

    def __call__(self, turn: Turn) -> None:
        """The agent has more of its turn."""
        if self.fired or len(turn.token_ids) < self._after:
            return
        named, calm = turn.named, self._calm.named
        assert named[:-1] == calm[: len(named) - 1], "not the calls of the calm turn"
        (name, arguments), (calm_name, calm_arguments) = named[-1], calm[len(named) - 1]
        assert name == calm_name and calm_arguments.startswith(arguments) and arguments, "not its arguments"
        assert arguments != calm_arguments, "the call is whole"

        proof = self._arming.proof("decoding", wait_until, lambda: self._baton.log_text()[-2000:])
        self._preempted.look()  # of the victim's own, too
        self.fired, self.num_retries = pids_of(self._baton)[proof.victim], int(self.victim != "prefill")
        os.kill(self.fired, signal.SIGKILL)
        assert wait_until(lambda: state_of(self.fired) in "XZ"), "it survives"
        self._arming.let_go()


def pids_of(baton: BatonProcess) -> dict[str, int]:
    """The processes by name, those that run now."""
    return {name: child.pid for child in baton.children() if (name := process_name(child)) is not None}


def all_serve(baton: BatonProcess, names: set[str]) -> bool:
    """Whether every worker is a member and is healthy."""
    return {row["id"] for row in baton.workers()} == names and baton.http.get("/health").status_code == 200


def expect_nothing_left(baton: BatonProcess, names: set[str]) -> None:
    """Every worker serves again, nothing is in flight, no page is held, and after a flush each is free."""
    assert baton.wait_until(lambda: all_serve(baton, names)), baton.log_text()[-3000:]
    assert baton.wait_for_rest()
    baton.http.post("/flush_cache").raise_for_status()
    assert baton.wait_for_rest()
    for row in baton.workers():
        assert row["kv_pages"]["free"] == row["kv_pages"]["total"]
    page = baton.http.get("/metrics").text
    assert re.search(r"^baton_requests_in_flight{.*} 0\.0$", page, re.MULTILINE)


def expect_loop(loop: Loop, folder: Path) -> None:
    """Each turn of the loop under fire equals that of the calm one, and so do those of its company."""
    rng = random.Random(f"loop {loop.seed}")
    with serving(loop, folder) as (baton, arming):
        names = {row["id"] for row in baton.workers()}
        seeds = [loop.seed * 10 + index for index in range(1 + loop.company)]
        calm = [Agent(baton.url, seed).run(loop.num_turns) for seed in seeds]
        baton.http.post("/flush_cache").raise_for_status()

        agent, preempted = Agent(baton.url, seeds[0]), Preempted(baton, loop.preempts)
        marker = agent.prompt_ids(MARKER_LEN)
        num_retries, lost, is_over = baton.metric("request_retries_total"), 0, Event()

        def keep_company(seed: int, expected: list[Turn]) -> None:
            """Loops of an agent, until the one under fire is over and some request was preempted."""
            for _ in range(MOST_ROUNDS):
                turns = Agent(baton.url, seed).run(loop.num_turns)
                assert [turn.told for turn in turns] == [turn.told for turn in expected]
                if preempted.look() and is_over.is_set():
                    return

        with ThreadPoolExecutor(1 + loop.company) as pool:
            company = [pool.submit(keep_company, *each) for each in zip(seeds[1:], calm[1:], strict=True)]
            try:
                for turn in calm[0]:
                    killer = Killer(baton, arming, marker, turn, rng, preempted)
                    assert agent.go(killer).told == turn.told
                    assert killer.fired, "nothing died inside the arguments"
                    num_retries, lost = num_retries + killer.num_retries, lost + 1
            finally:
                is_over.set()
            for kept in company:
                kept.result()

        assert preempted.look(), "nothing was preempted"
        assert baton.metric("request_retries_total") >= num_retries
        assert baton.wait_until(lambda: baton.metric("workers_lost_total") >= lost), "a death was not noticed"
        expect_calls(agent)
        expect_nothing_left(baton, names)


def expect_calls(agent: Agent) -> None:
    """Each call follows its schema, and no two have the same id."""
    calls = [call for turn in agent.turns for call in turn.whole_calls]
    assert all(follows(call, agent.tools) for call in calls) and len(calls) >= 4
    assert len({call.id for call in calls}) == len(calls)


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_a_loop_under_kills_is_the_calm_one(loop: Loop, tmp_path: Path) -> None:
    expect_loop(loop, tmp_path)


@pytest.mark.parametrize(
    ("name", "num_turns"),
    [broad(("drafts", 4)), *(full((name, 8)) for name in VARIANTS)],
)
def test_so_is_one_with_drafts_ranks_or_little_memory(name: str, num_turns: int, tmp_path: Path) -> None:
    expect_loop(replace(VARIANTS[name], num_turns=num_turns), tmp_path)
