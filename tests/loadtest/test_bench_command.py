"""`baton bench` on a stand-in: its exit status, its files, Ctrl-C, and a comparison of two of its reports."""

import asyncio
import io
import json
import os
import re
import signal
import sys
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadtest.bench_command import EXIT_CTRL_C, EXIT_FAILED, Session, compare_command
from loadtest.bench_flags import bench_parser
from loadtest.drive.own_load import OwnLoad
from loadtest.drive.server import PROBE_TOKENS
from loadtest.http_exchange import Server
from loadtest.search import Search
from loadtest.shown.files import report_json, write_report
from protocol.errors import ConfigError
from tests.loadtest.echoing import echoing
from tests.loadtest.openai_stand_in import StandIn, standing_in, tokens
from tests.loadtest.reports import ABOUT, measured

pytestmark = pytest.mark.usefixtures("any_speed")
SMALL = "--random-input-len 8 --random-output-len 5"


@pytest.fixture
def any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late this busy machine wakes the client, its figures are shown."""
    monkeypatch.setattr(OwnLoad, "refusal", lambda *_: None)


def session(server: Server, typed: str, out: str = "none") -> tuple[Session, io.StringIO]:
    words = [*typed.split(), *SMALL.split(), "--port", str(server.port), "--out", out]
    said = io.StringIO()
    return Session(bench_parser().parse_args(words), words, Console(file=said, width=140)), said


async def test_a_load_is_run_as_often_as_asked_and_reported(tmp_path: Path) -> None:
    async with echoing() as server:
        one, said = session(
            server, "--num-prompts 12 --max-concurrency 3 --repeat 2 --goodput e2e:60000", str(tmp_path)
        )
        assert await one.run() == 0
    assert "stand-in: random, 8 tokens in, 5 out; as soon as a place is free, at most 3 at a time" in said.getvalue()
    assert said.getvalue().count("12 done") == 2 and f"report: {tmp_path}/report.html" in said.getvalue()
    report = json.loads((tmp_path / "report.json").read_text())
    assert [run["figures"]["good_share"] for run in report["runs"]] == [1, 1] and report["valid"]
    assert report["environment"]["command"].startswith("baton bench --num-prompts 12")
    prompts = [json.loads(line)["num_prompt"] for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert prompts == [8] * 24


def is_probe(body: dict[str, Any]) -> bool:
    return bool(body["max_tokens"] == PROBE_TOKENS)


def without_a_token(body: dict[str, Any]) -> list[bytes | None]:
    return tokens(body) if is_probe(body) else [b"data: [DONE]\n\n"]


def without_end(body: dict[str, Any]) -> Iterable[bytes | None]:
    return tokens(body) if is_probe(body) else repeat(tokens(body)[0])


async def test_a_failed_request_is_an_exit_status() -> None:
    async with standing_in(StandIn(without_a_token)) as server:
        one, said = session(server, "--num-prompts 3 --max-concurrency 1")
        assert await one.run() == EXIT_FAILED
    assert "3 requests failed (no token): the stream ended without a token" in said.getvalue()


async def test_ctrl_c_ends_the_run_and_writes_what_ran(tmp_path: Path) -> None:
    stand_in = StandIn(without_end, pause_s=0.01)
    async with standing_in(stand_in) as server:
        one, said = session(server, "--max-concurrency 2 --num-prompts 5", str(tmp_path))
        running = asyncio.create_task(one.run())
        for _ in range(3):  # the probe and both clients
            await stand_in.asked.get()
        os.kill(os.getpid(), signal.SIGINT)
        assert await running == EXIT_CTRL_C
    assert "2 unfinished" in said.getvalue() and "Ctrl-C" in said.getvalue()
    assert json.loads((tmp_path / "report.json").read_text())["runs"][0]["stopped"]["why"] == "Ctrl-C"


async def test_a_sweep_tries_rates_and_tells_what_it_found(tmp_path: Path) -> None:
    async with echoing() as server:
        typed = f"--goodput ttft:60000 --num-prompts 4 --request-rate 200 --port {server.port} --out {tmp_path} {SMALL}"
        asked = bench_parser().parse_args(typed.split())
        said = io.StringIO()
        search = Search(first_rate=200.0, burstiness=1.0, target_share=0.9, most_runs=3, precision=1.1)
        assert await Session(asked, ["sweep"], Console(file=said, width=160), search).run() == 0
    conclusion = "up to 800 a second, the largest rate that was tried, 90% of the requests meet ttft:60000"
    assert conclusion in said.getvalue() and "run 3: 800 a second (Poisson)" in said.getvalue()
    assert json.loads((tmp_path / "report.json").read_text())["sweep"] == [conclusion]
    page = (tmp_path / "report.html").read_text()
    assert conclusion in page and "Share that meets the objectives" in page


async def test_an_endpoint_that_is_down_is_one_sentence() -> None:
    async with echoing() as server:
        pass
    one, _ = session(server, "")
    with pytest.raises(ConfigError, match=r"^nothing answers at "):
        await one.run()


async def test_wrong_flags_are_told_before_anybody_is_asked() -> None:
    one, _ = session(Server("127.0.0.1", 1), "--goodput fast")
    with pytest.raises(ConfigError, match=r"^--goodput: got 'fast'"):
        await one.run()


def test_two_reports_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, scale in (("a", 1.0), ("b", 1.5)):
        runs = [measured(scale), measured(scale)]
        write_report(tmp_path / name, runs, report_json(runs, ABOUT), "")
    assert compare_command([str(tmp_path / "a"), str(tmp_path / "b" / "report.json")]) == 0
    said = capsys.readouterr().out
    assert (
        re.search(r"TTFT p50 .*200 .*300 .*1\.500 .*\*", said)
        and "TTFT p50 +50% (+50% to +50%), which is worse" in said
    )


@pytest.mark.slow
async def test_the_command_runs_as_a_process_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    async with echoing() as server:
        url = f"http://{server.host}:{server.port}"
        command = (sys.executable, "-P", "-m", "deploy", "bench", "--url", url, "--out", str(tmp_path), *SMALL.split())
        whole = await asyncio.create_subprocess_exec(*command, "--num-prompts", "9", stdout=asyncio.subprocess.PIPE)
        said, _ = await whole.communicate()
        assert b"9 done" in said and whole.returncode == (b"no figures" in said) and (tmp_path / "report.html").exists()

        endless = ("--max-concurrency", "2", "--duration", "600")
        cut = await asyncio.create_subprocess_exec(*command, *endless, stdout=asyncio.subprocess.PIPE)
        assert cut.stdout is not None
        await cut.stdout.readuntil(b"600 s\n")  # the load is told, then it begins
        cut.send_signal(signal.SIGINT)
        rest = await cut.stdout.read()
        assert await cut.wait() == EXIT_CTRL_C and (b"Ctrl-C" in rest or rest == b"")
