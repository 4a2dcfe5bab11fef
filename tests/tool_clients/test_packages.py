"""Suites find the packages in their own folder, and none of this environment."""

import json
from pathlib import Path

import pytest

from tests.tool_clients.packages import CLIENTS, NODE, Packages
from tests.tool_clients.suites import SUITES, Server


def described(folder: Path, name: str, version: str) -> None:
    """A package of Node."""
    (folder / "node_modules" / name).mkdir(parents=True)
    (folder / "node_modules" / name / "package.json").write_text(json.dumps({"name": name, "version": version}))


def test_versions_of_packages(tmp_path: Path) -> None:
    described(tmp_path, "@ai-sdk/openai-compatible", "3.0")
    info = tmp_path / "python/lib/python3.11/site-packages/openai-9.8.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: openai\nVersion: 9.8\n")
    packages = Packages(tmp_path)
    assert packages.version("npm:@ai-sdk/openai-compatible") == "3.0"
    assert packages.version("openai") == "9.8"
    with pytest.raises(ValueError, match="not enough values"):
        packages.version("pytest")  # this environment has it


def test_its_own_node_is_taken_before_that_of_the_machine(tmp_path: Path) -> None:
    assert Packages(tmp_path).node == "node"
    program = tmp_path / "node_modules" / NODE / "bin" / "node"
    program.parent.mkdir(parents=True)
    program.touch()
    assert Packages(tmp_path).node == str(program)


def test_the_programs_that_suites_run_are_there(tmp_path: Path) -> None:
    packages = Packages(tmp_path)
    commands = [suite.command(packages, Server("http://127.0.0.1:1/v1", "story")) for suite in SUITES.values()]
    named = {word for command in commands for word in command if word.endswith((".py", ".mjs"))}
    assert named == {program.name for program in CLIENTS.iterdir() if program.is_file()} - {"cases.mjs"}
