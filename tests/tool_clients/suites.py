"""The suites: how each is run against a server, how it tells of its cases, and which of them may fail, and why."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.tool_clients.outcomes import Case, Reader, of_comply, of_lines, of_provider_check, of_pytest
from tests.tool_clients.packages import Packages

TIMEOUT_S: Final = 600.0  # of a suite
REPORT: Final = "report"  # a file in the folder of packages that a suite writes
PYTEST_INI: Final = """[pytest]
asyncio_mode = auto
asyncio_default_test_loop_scope = session
asyncio_default_fixture_loop_scope = session
"""  # langchain-openai keeps its clients for one loop


@dataclass(frozen=True)
class Server:
    """The server that the suites ask. `model` is a name that it serves."""

    url: str
    model: str


@dataclass(frozen=True)
class Suite:
    """`command` makes the command that runs it. `known`: cases that fail by our own choice, with the reason."""

    packages: Sequence[str]
    command: Callable[[Packages, Server], Sequence[str]]
    read: Reader
    known: Mapping[str, str] = field(default_factory=dict)

    def run(self, packages: Packages, server: Server) -> Sequence[Case]:
        """All cases. A suite that tells of none raises."""
        (packages.folder / "pytest.ini").write_text(PYTEST_INI, encoding="utf-8")
        report = packages.folder / REPORT
        report.unlink(missing_ok=True)
        own = {"TOOL_CLIENTS_URL": server.url, "TOOL_CLIENTS_MODEL": server.model}
        done = subprocess.run(
            self.command(packages, server),
            cwd=packages.folder,
            env=os.environ | own,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        cases = self.read(report.read_text(encoding="utf-8") if report.exists() else done.stdout)
        if not cases:
            raise RuntimeError(f"a suite told of no case, and ended with {done.returncode}: {done.stdout[-2000:]}")
        return cases


def _python(program: str) -> Callable[[Packages, Server], Sequence[str]]:
    return lambda packages, _: (str(packages.bin / "python"), program)


def _node(program: str) -> Callable[[Packages, Server], Sequence[str]]:
    return lambda packages, _: (packages.node, program)


def _langchain_tests(packages: Packages, _: Server) -> Sequence[str]:
    """All tests of a chat model once, those of structured output by calls of tools, too."""
    chosen = "TestIntegration or test_structured"
    report = f"--junit-xml={REPORT}"
    return (str(packages.bin / "pytest"), "-q", "-c", "pytest.ini", "-k", chosen, report, "langchain_standard.py")


def _comply(packages: Packages, server: Server) -> Sequence[str]:
    asked = ("--base-url", server.url, "--api-key", "none", "--model", server.model)
    return (str(packages.bin / "llm-comply"), "--format", "openai-chat", "--json", *asked)


def _provider_check(packages: Packages, server: Server) -> Sequence[str]:
    """All but its sixth tier, which times the server."""
    asked = ("--base-url", server.url, "--model", server.model)
    return (str(packages.bin / "trustedrouter-provider-check"), "--tier", "5", "--json", REPORT, *asked)


SUITES: Final[Mapping[str, Suite]] = {
    "openai-node": Suite(("npm:openai", "npm:zod"), _node("openai_node.mjs"), of_lines),
    "AI SDK": Suite(("npm:ai", "npm:@ai-sdk/openai-compatible"), _node("ai_sdk.mjs"), of_lines),
    "openai-agents": Suite(("openai-agents", "openai"), _python("openai_agents.py"), of_lines),
    "langchain-tests": Suite(("langchain-tests", "langchain-openai"), _langchain_tests, of_pytest),
    "trustedrouter-provider-check": Suite(("trustedrouter-provider-check",), _provider_check, of_provider_check),
    "llm-comply": Suite(
        ("llm-comply",),
        _comply,
        of_comply,
        {
            "chat-image-input": "images are refused",
            "chat-error-handling": "its bad request lacks the model's name, which Baton needs as little as vLLM does",
        },
    ),
}
