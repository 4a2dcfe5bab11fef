"""`baton serve` and `baton demo` with the real gateway and workers, on a tiny random checkpoint."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from testkit.checkpoints import make_checkpoint
from testkit.roles import role_of
from tests.e2e.baton_process import PATIENCE_S
from tests.gateway.folders import byte_tokenizer
from tests.processes import python_path

pytestmark = pytest.mark.slow
PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_checkpoint(tmp_path_factory.mktemp("models") / "tiny", "qwen3")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def baton(*argv: str) -> list[str]:
    return [sys.executable, "-m", "deploy", *argv]


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": python_path(PROJECT), **extra}


def run(argv: list[str], **extra: str) -> "subprocess.CompletedProcess[str]":
    """The command, to its end."""
    env = environment(**extra)
    return subprocess.run(baton(*argv), env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.fixture
def serving(model: Path, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    for room in ("gateway", "model"):  # what a user's folder may hold must not be imported in our place
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise SystemExit('the wrong room')")
    argv = ["serve", "--model", str(model), "--port", "0", "--max-total-tokens", "1024"]
    with (tmp_path / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", *baton(*argv)[1:]],
            cwd=tmp_path,
            env=environment(BATON_THREADS="2", BATON_PAGE_SIZE="8"),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    yield process
    process.kill()
    process.communicate()


def post(command: str) -> dict[str, Any]:
    """The last chunk of the stream that the printed curl would get, with the usage."""
    words = shlex.split(command)
    body = {**json.loads(words[-1]), "stream_options": {"include_usage": True}}
    request = urllib.request.Request(words[3], json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        *_, last, done = [line.removeprefix(b"data: ") for line in response.read().split(b"\n") if line]
    assert done == b"[DONE]"
    chunk: dict[str, Any] = json.loads(last)
    return chunk


def test_the_printed_curl_answers_and_ctrl_c_leaves_nothing(serving: "subprocess.Popen[str]") -> None:
    assert serving.stdout is not None
    ready, curl = serving.stdout.readline(), serving.stdout.readline()
    assert ready.startswith("Ready: tiny at http://127.0.0.1:")
    answer = post(curl)
    assert answer["model"] == "tiny"
    assert answer["usage"]["completion_tokens"] == 64

    children = psutil.Process(serving.pid).children()
    threads = {role_of(child.cmdline()): child.environ()["OMP_NUM_THREADS"] for child in children}
    assert threads == {"gateway": "1", "prefill": "2", "decode": "2"}
    assert {child.environ()["OMP_WAIT_POLICY"] for child in children} == {"PASSIVE"}

    serving.send_signal(signal.SIGINT)
    assert serving.wait(PATIENCE_S) == 0
    gone, alive = psutil.wait_procs(children, PATIENCE_S)
    assert (len(gone), alive) == (3, [])


def test_a_model_that_no_worker_can_serve_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"], "model_type": "bert"}')
    ended = run(["serve", "--model", str(tmp_path), "--port", "0"])
    assert ended.returncode == 2
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("baton: error: ")
    assert "BertModel" in last


@pytest.mark.broad
def test_the_demo_of_a_model_without_tokenizer_shows_token_ids(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny", "qwen3")
    ended = run(["demo", "--model", str(folder), "--max-tokens", "4"], COLUMNS="120")
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^\[1, 2, 3\]( \d+){4}$", ended.stdout, re.MULTILINE), ended.stdout
    assert "4 tokens in " in ended.stdout


def test_the_demo_streams_an_answer_and_shows_its_time_line(model: Path) -> None:
    ended = run(["demo", "--model", str(model), "--max-tokens", "8", "--prompt", "Once"], COLUMNS="120")
    assert ended.returncode == 0, ended.stderr
    assert "\nOnce" in ended.stdout
    assert "8 tokens in " in ended.stdout
    for worker in ("gateway", "prefill-0", "decode-0"):
        assert f"  {worker} " in ended.stdout
    assert "first token" in ended.stdout


@pytest.mark.broad
def test_the_demo_with_a_draft_shows_its_tokens_in_colour() -> None:
    ended = run(
        ["demo", "--max-tokens", "40", "--speculative-algorithm", "eagle"],
        COLUMNS="120",
        FORCE_COLOR="1",
        TERM="xterm-256color",
        NO_COLOR="",
    )
    assert ended.returncode == 0, ended.stderr
    told = re.sub(r"\x1b\[[0-9;]*m", "", ended.stdout)
    match = re.search(r"^(\d+) tokens were proposed by the draft: (\d+) tokens in (\d+) steps$", told, re.MULTILINE)
    assert match is not None, told
    num_proposed, num_tokens, num_steps = map(int, match.groups())
    assert num_proposed > 10 and num_tokens == 40
    assert num_proposed + num_steps in (40, 41), "the last run may be cut"

    answer = ended.stdout.partition("Once upon a time")[2].partition("\n\n")[0]
    runs = re.findall(r"\x1b\[1;32m(.+?)\x1b\[0m", answer, re.DOTALL)
    assert 5 < len(runs) < num_steps, "the runs of tokens that launches have kept"
    assert sum(map(len, runs)) > 10
