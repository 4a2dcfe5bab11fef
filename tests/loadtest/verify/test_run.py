"""A run: a fault beside it, a server that suffers, leaks, contradicts itself, or refuses."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from loadtest.http_exchange import Server
from loadtest.verify import run as running
from loadtest.verify.bounds import Bounds
from loadtest.verify.client import Client
from loadtest.verify.findings import Exit, Result
from loadtest.verify.judge import Verdict
from loadtest.verify.phases import made_asks
from loadtest.verify.probe import probe
from loadtest.verify.run import Plan, Run
from loadtest.verify.scoring import Scorer, ServerScorer
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock
from tests.loadtest.verify.hash_server import FIRST, answer, hashing

Answering = Callable[[dict[str, Any]], Sequence[bytes]]
BOUNDS = Bounds(requests=60, rate=1e6)


async def verified(server: Server, *, is_scored: bool = True, **plan: Any) -> tuple[Result, list[str]]:
    """The result of a run, and the phases in the order of their requests."""
    clock, shown = MonotonicClock(), list[str]()
    dialect = await probe(server, clock, None)
    client = Client(server, clock, dialect, BOUNDS)
    scorers: list[Scorer] = [ServerScorer(server, clock, dialect.way, {}, 30.0)] if is_scored else []
    made = made_asks(1, 4, 250, 12, 2048)
    result = await Run(client, Plan(made, 1, **plan), scorers, Result({}), shown.append).run()
    return result, shown


class Counting:
    """`change` in place of the right answer from request number `after` on."""

    def __init__(self, change: Answering, after: int = 40) -> None:
        self.num_asked = self.num_changed = 0
        self._change, self._after = change, after

    def __call__(self, body: dict[str, Any]) -> Sequence[bytes]:
        self.num_asked += 1
        if self.num_asked <= self._after:
            return answer(body)
        self.num_changed += 1
        return self._change(body)


def refused(_: dict[str, Any]) -> Sequence[bytes]:
    return [b'{"error": {"message": "busy", "type": "t", "code": "c"}}']


async def test_requests_go_on_while_the_command_of_a_fault_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait = f"open('{gate}').read()"
    os.mkfifo(gate)  # nobody reads it to its end until somebody has written
    server_saw = asyncio.Event()

    def change(body: dict[str, Any]) -> Sequence[bytes]:
        server_saw.set()
        return refused(body)

    counting = Counting(change, after=30)
    async with hashing(counting) as server:
        command = f'{sys.executable} -c "{wait}"'
        going = asyncio.create_task(verified(server, extra=("fault",), fault=command, only="fault"))
        await server_saw.wait()  # requests are refused beside the command, which waits for the gate
        await asyncio.to_thread(open_gate, gate)
        result, shown = await going
    assert counting.num_changed > 0 and result.verdicts["fault"][Verdict.ERROR] > 0
    assert set(shown) == {"quiet", "fault"}
    assert not result.stopped and result.exit == Exit.CLEAN, result.sentence  # refusals are allowed meanwhile


def open_gate(gate: Path) -> None:
    """Lets the command that waits there end, and later ones end at once."""
    writer = os.open(gate, os.O_WRONLY)  # when the command has opened it, too
    gate.with_name("plain").write_text("")
    gate.with_name("plain").replace(gate)
    os.close(writer)


async def test_a_fault_that_fails_cannot_be_judged() -> None:
    async with hashing() as server:
        result, _ = await verified(server, extra=("fault",), fault=f"{sys.executable} -c 'raise SystemExit(3)'")
        assert result.exit == Exit.CANNOT_JUDGE and "ended with status 3" in result.sentence
        with pytest.raises(ConfigError, match="--fault: cannot run '/no/such/program'"):
            await verified(server, extra=("fault",), fault="/no/such/program", only="fault")


async def test_refusals_stop_a_run() -> None:
    counting = Counting(refused)
    async with hashing(counting) as server:
        result, _ = await verified(server)
    assert counting.num_changed >= 3 and result.stopped.endswith("requests were refused, more than 5%")
    assert result.exit == Exit.CANNOT_JUDGE


async def test_a_server_that_never_says_the_same_cannot_be_judged_without_scores() -> None:
    def drifting(body: dict[str, Any]) -> Sequence[bytes]:
        counting.num_asked += 1
        return answer({**body, "prompt": [*body["prompt"], FIRST + counting.num_asked % 200]})

    counting = Counting(drifting, after=0)
    async with hashing(counting) as server:
        result, _ = await verified(server, is_scored=False)
    assert counting.num_changed > 0 and result.exit == Exit.CANNOT_JUDGE
    assert "repeat: answers of the quiet server differ by inf" in result.sentence


async def test_scores_tell_which_quiet_answer_is_wrong() -> None:
    def damaged(body: dict[str, Any]) -> Sequence[bytes]:
        is_hit = not body.get("stream") and "prompt_logprobs" not in body and counting.num_asked % 3 == 0
        counting.num_hit += is_hit
        return answer({**body, "prompt": [*body["prompt"][:-1], 249]} if is_hit else body)

    class Hits(Counting):
        num_hit = 0

    counting = Hits(damaged, after=14)
    async with hashing(counting) as server:
        result, _ = await verified(server)
    assert counting.num_hit > 0 and result.exit == Exit.FOUND
    assert {finding.verdict for finding in result.findings} <= {"wrong", "foreign"}
    assert any(finding.phase == "quiet" for finding in result.findings)


@pytest.mark.parametrize("left, verdict", [(0, {}), (2, {"leaked": 1})])
async def test_a_server_must_be_at_rest_afterwards(
    left: int, verdict: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`left`: requests that it still counts when no request is sent."""
    monkeypatch.setattr(running, "REST_S", 0.0)
    counting = Counting(answer, after=20)

    async def metrics(*_: object) -> dict[str, float]:
        return {"vllm:num_requests_running": float(left if counting.num_changed else 0)}

    monkeypatch.setattr(running, "metrics", metrics)
    async with hashing(counting) as server:
        result, _ = await verified(server)
    assert counting.num_changed > 0
    assert dict(result.verdicts["rest"]) == verdict
    assert result.exit == (Exit.FOUND if left else Exit.CLEAN)


async def test_a_calibration_saves_requests() -> None:
    async with hashing() as server:
        first, shown = await verified(server)
        again, later = await verified(server, noises=first.noises)
    assert again.exit == Exit.CLEAN and again.noises == first.noises
    assert shown.count("quiet") == 12 and later.count("quiet") == 4
    assert json.dumps({name: vars(noise) for name, noise in again.noises.items()})


async def test_a_server_of_single_choices_is_asked_for_no_others() -> None:
    def single(body: dict[str, Any]) -> Sequence[bytes]:
        return refused(body) if body.get("n", 1) > 1 else answer(body)

    async with hashing(single) as server:
        result, shown = await verified(server)
        assert result.exit == Exit.CLEAN and "choices" not in shown and "load" in shown
        result, shown = await verified(server, only="choices")
    assert result.exit == Exit.CANNOT_JUDGE and set(shown) == {"quiet"}
    assert "this server cannot be asked as the phase choices asks" in result.sentence
