"""A sweep over deployments: their table, and when it ends."""

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest import topologies
from loadtest.measure import Measured
from loadtest.search import Search
from loadtest.topologies import Served, best_run, run_each, topologies_table
from loadtest.work.arrivals import Gamma
from tests.loadtest.reports import LOAD, measured, printed

SEARCH = Search(first_rate=1.0, burstiness=1.0, target_share=0.9, most_runs=9, precision=1.1)
PAIR, UNIFIED = "--prefill 1 --decode 1", "--prefill 0 --decode 0 --unified 2"


def run_at(rate: float, scale: float) -> Measured:
    """At scale 1, 95% of the requests meet 500 ms; at scale 3 none."""
    return measured(scale, load=replace(LOAD, arrivals=Gamma(rate)))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of each deployment that was started, in place of starting it."""
    commands: list[list[str]] = []

    @asynccontextmanager
    async def pretended(arguments: Sequence[str]) -> AsyncIterator[str]:
        commands.append(list(arguments))
        yield f"http://h:{len(commands)}"

    monkeypatch.setattr(topologies, "deployed", pretended)
    return commands


async def test_each_deployment_is_served_in_turn_into_a_folder_of_its_own(started: list[list[str]]) -> None:
    seen = []

    async def sweep(asked: argparse.Namespace, serve: str) -> tuple[int, list[Measured]]:
        seen.append((asked.base_url, asked.out))
        return 1, [run_at(1.0, 3.0)]

    asked = argparse.Namespace(serve=[PAIR, UNIFIED], base_url=None, out="ignored")
    outcomes = await run_each(asked, sweep, Path("out"))
    assert started == [PAIR.split(), UNIFIED.split()]
    assert seen == [("http://h:1", "out/1"), ("http://h:2", "out/2")] and asked.base_url is None
    assert [(served.serve, served.status) for served in outcomes] == [(PAIR, 1), (UNIFIED, 1)]


async def test_ctrl_c_ends_them_all(started: list[list[str]]) -> None:
    async def sweep(asked: argparse.Namespace, serve: str) -> tuple[int, list[Measured]]:
        return 130, []

    outcomes = await run_each(argparse.Namespace(serve=[PAIR, UNIFIED]), sweep, None)
    assert len(outcomes) == len(started) == 1


def test_the_table_has_the_figures_at_the_largest_good_rate() -> None:
    runs = [run_at(1.0, 0.5), run_at(2.0, 1.0), run_at(4.0, 3.0)]
    table = topologies_table([Served(PAIR, 0, runs), Served("", 130, [])], SEARCH, markdown=True)
    rows = [line.replace(" ", "") for line in printed(table, 160).splitlines()]
    assert "|--prefill1--decode1|2|4|42.4|-|0.95|200|-|50|50|-|-|" in rows
    assert "|(defaults)|-|-|-|-|-|-|-|-|-|-|-|" in rows
    assert best_run(runs, 2.0) is runs[1] and best_run(runs, None) is None


def test_long_prompts_stand_beside_the_streams() -> None:
    disturbed = measured(beside=measured(4.0).figures)
    table = topologies_table([Served(PAIR, 0, [disturbed])], None, markdown=True)
    assert "|--prefill1--decode1|42.4|-|0.95|200|-|50|50|-|800|" in printed(table, 160).replace(" ", "")
