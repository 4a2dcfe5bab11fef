"""The commands of the first section of docs/clients.md work as they stand there, at a gateway that wants a key."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.dialects.openai.fields import CompletionRequest
from gateway.dialects.openai.unsupported import refuse_unsupported
from protocol.errors import BadRequest
from runtime.keys import read_api_keys
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting, running
from tests.processes import python_path

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
TRIED = PAGE.partition("## curl and the OpenAI SDK\n")[2].partition("\n## ")[0]
KEY = "a-key"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TRIED, re.DOTALL)


COMMANDS = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]


@pytest.fixture
async def locked(folder: Path, tmp_path: Path) -> AsyncIterator[Setting]:
    """A gateway that wants a key, with workers that answer in letters."""
    (tmp_path / "gateway.txt").write_text(KEY + "\n")
    (tmp_path / "gateway.txt").chmod(0o600)
    async with running(folder, api_key_file=str(tmp_path / "gateway.txt")) as found:
        await found.add_pair(Behaviour(lambda assign, choice: list(b"abcdefgh")[: assign.sampling.max_tokens]))
        yield found


async def said(setting: Setting, folder: Path, *command: str) -> str:
    """What a command prints; it must succeed. Those of `.venv/bin` are this one's."""
    path = python_path(Path(__file__).parents[2])
    variables = {**os.environ, "URL": setting.gateway.url, "KEY": KEY, "PYTHONPATH": path}
    child = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=variables, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await child.communicate()
    assert child.returncode == 0, (command, output, errors)
    return output.decode()


def test_the_first_command_says_where_and_the_others_use_it() -> None:
    assert COMMANDS[0] == "URL=http://127.0.0.1:8000 KEY=none"
    assert len(COMMANDS) == 10
    assert all("$URL" in command or command.endswith("> keys.txt)") for command in COMMANDS[1:])


def test_litellm_is_told_to_drop_only_what_is_refused() -> None:
    [names] = re.findall(r"additional_drop_params: \[(.*?)\]\n", PAGE)
    for name in names.split(", "):
        with pytest.raises(BadRequest, match=f"^{name}: .* not supported"):
            refuse_unsupported({name: 5}, CompletionRequest)


async def test_each_command(locked: Setting, tmp_path: Path) -> None:
    for command in COMMANDS[1:]:
        command = command.replace(".venv/bin/python -m", f"{sys.executable} -m")
        command = command.replace(".venv/bin/baton", f"{sys.executable} -m deploy")
        output = await said(locked, tmp_path, "bash", "-c", command)
        if "/metrics" in command:
            assert "baton_requests_total" in output
        elif command.endswith("> keys.txt)"):
            assert read_api_keys(tmp_path / "keys.txt") == (KEY,)
        elif '"stream": true' in command:
            assert output.endswith("data: [DONE]\n\n") and '"total_tokens"' in output
        elif "deploy bench" in command:
            assert ": 2 done\n" in output
        elif "/completions" in command:
            assert json.loads(output)["usage"]["completion_tokens"] == 8
        else:
            assert json.loads(output)


async def test_the_python_program(locked: Setting, tmp_path: Path) -> None:
    pytest.importorskip("openai", reason="the package `openai` is not installed")
    [program] = blocks("python")
    for found, ours in (("http://127.0.0.1:8000", locked.gateway.url), ('"none"', repr(KEY))):
        assert found in program
        program = program.replace(found, ours)
    first, second = (await said(locked, tmp_path, sys.executable, "-c", program)).splitlines()
    assert first.startswith("abcdefgh ") and second == "abcdefgh"
