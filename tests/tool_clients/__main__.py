"""`python -m tests.tool_clients`: other projects' clients and suites call tools of a gateway, unchanged.

It installs them into a folder of its own by pip and npm, serves a scripted model through a real gateway, and prints a
table. Status 0: each case passed, was skipped by its suite, or fails for a reason that suites.py tells.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from protocol.messages_gateway import Role
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import running
from tests.gateway.folders import marked_tokenizer, write_folder
from tests.gateway.text.channels import templates
from tests.gateway.tool_answers import MARKERS
from tests.saying import say
from tests.tool_clients.outcomes import FAILED, PASSED, SKIPPED, Case
from tests.tool_clients.packages import Packages
from tests.tool_clients.scripted_model import ScriptedModel
from tests.tool_clients.suites import SUITES, Server, Suite

NAME: Final = "scripted-deepseek-r"  # llm-comply asks for thoughts only where a model's name has such a part
LENGTH: Final = 65536  # tokens: each is a byte or little more
PAUSE_S: Final = 0.001  # between two tokens, so that a stream comes in parts


@asynccontextmanager
async def scripted_server() -> AsyncIterator[tuple[Server, ScriptedModel]]:
    """A gateway whose one worker says what a ScriptedModel does."""
    with tempfile.TemporaryDirectory() as name:
        tokenizer, config = marked_tokenizer(MARKERS), {"max_position_embeddings": LENGTH}
        model = ScriptedModel(write_folder(Path(name), tokenizer, config=config, template=templates.QWEN))
        behaviour = Behaviour(model, pause_s=PAUSE_S)
        async with running(model.folder, served_model_name=(NAME,)) as setting:
            await setting.add(
                Role.UNIFIED, "u1", behaviour=behaviour, context_length=LENGTH, max_total_tokens=16 * LENGTH
            )
            yield Server(setting.gateway.url + "/v1", NAME), model


def verdict(suite: Suite, cases: Sequence[Case]) -> list[str]:
    """What is not as it should be: cases that fail, and cases that pass although they are known to fail."""
    failed = {case.name: case.reason for case in cases if case.outcome == FAILED}
    new = [f"{name}: {reason}" for name, reason in failed.items() if name not in suite.known]
    return new + [
        f"{name}: expected to fail, because {suite.known[name]}" for name in suite.known if name not in failed
    ]


def report(name: str, versions: Mapping[str, str], suite: Suite, cases: Sequence[Case]) -> list[str]:
    """A row of the table, and a line for each case that has not passed."""
    counts = [sum(case.outcome == outcome for case in cases) for outcome in (PASSED, FAILED, SKIPPED)]
    told = ", ".join(f"{package.removeprefix('npm:')} {version}" for package, version in versions.items())
    row = f"| {name} | {told} | {len(cases)} | {' | '.join(map(str, counts))} |"
    others = [
        f"  {case.outcome} {case.name}: {suite.known.get(case.name, case.reason)}"
        for case in cases
        if case.outcome != PASSED
    ]
    return [row, *others]


async def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.tool_clients", description=__doc__.partition("\n")[0])
    parser.add_argument("--packages", type=Path, help="folder for the packages, kept (default: a temporary one)")
    parser.add_argument("--suite", choices=list(SUITES), action="append", help="only this one; may be repeated")
    parser.add_argument("--url", help="of another server, as http://127.0.0.1:8000/v1, in place of the scripted model")
    parser.add_argument("--model", default=NAME, help=f"its name there (default {NAME})")
    asked = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        packages = Packages((asked.packages or Path(temporary)).absolute())
        await asyncio.to_thread(packages.install)
        chosen = {name: SUITES[name] for name in asked.suite or SUITES}
        if asked.url:
            return 1 if await run_all(chosen, packages, Server(asked.url, asked.model)) else 0
        async with scripted_server() as (server, model):
            wrong = await run_all(chosen, packages, server)
            wrong += [f"the grammar of {question!r} allows no answer of the script" for question in model.unfit]
            return 1 if wrong else 0


async def run_all(suites: Mapping[str, Suite], packages: Packages, server: Server) -> list[str]:
    """Runs suites one after another, prints the table, and returns what is wrong."""
    wrong = []
    say("| suite | versions | cases | passed | failed | skipped |")
    for name, suite in suites.items():
        cases = await asyncio.to_thread(suite.run, packages, server)
        versions = {package: packages.version(package) for package in suite.packages}
        for line in report(name, versions, suite, cases):
            say(line)
        wrong += verdict(suite, cases)
    return wrong


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
