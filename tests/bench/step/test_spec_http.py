"""What the rows and goals over HTTP show, from speeds that are known."""

from typing import Any

import pytest

from bench.records import Goal, Record, Row
from bench.sheet import Sheet
from bench.step import spec_http
from bench.step.spec_http import ADAPTIVE, ANSWER, CLIENTS, FIXED, OF_A_CLIENT, WITHOUT, served, show, tokens_per_s


def shown(clients: int, speeds: dict[str, list[float]]) -> tuple[list[Row], list[Goal]]:
    records: list[Record] = []
    show(Sheet("spec", records.append), clients, speeds)
    return [record for record in records if isinstance(record, Row)], [
        record for record in records if isinstance(record, Goal)
    ]


@pytest.mark.parametrize(("clients", "side", "least"), [(1, FIXED, 1.5), (4, FIXED, 1.2), (16, ADAPTIVE, 0.97)])
def test_a_goal_is_the_median_of_the_ratios_of_rounds(clients: int, side: str, least: float) -> None:
    rows, [goal] = shown(clients, {WITHOUT: [100.0, 200.0, 50.0], side: [100.0 * least, 400.0 * least, 25.0]})
    assert [row.cells["side"] for row in rows] == [WITHOUT, side] and goal.bound == least
    assert goal.value == least and goal.met
    _, [goal] = shown(clients, {WITHOUT: [100.0], side: [100.0 * least - 1]})
    assert not goal.met


def test_the_side_without_a_draft_has_no_goal_and_each_draft_has_one() -> None:
    for clients, sides in CLIENTS.items():
        _, goals = shown(clients, {name: [1.0] for name in (WITHOUT, *sides)})
        assert len(goals) == len(sides) > 0


def test_sides_differ_by_their_draft_alone() -> None:
    flags = served("eagle3")
    without = flags[WITHOUT]
    assert all(flags[name][: len(without)] == without for name in flags)
    assert "eagle3" in flags[FIXED] and flags[FIXED][: len(flags[ADAPTIVE])] == flags[ADAPTIVE] != flags[FIXED]


class Answering:
    """A side whose answers have so many tokens."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.asked: list[tuple[int, ...]] = []

    async def complete(self, prompt: tuple[int, ...], max_tokens: int, **fields: Any) -> "Answering":
        assert max_tokens == ANSWER
        self.asked.append(prompt)
        return self


class Ticking:
    """A clock that is two seconds later whenever it is read."""

    at = 0.0

    def now(self) -> float:
        self.at += 2
        return self.at


async def test_each_client_asks_its_prompt_some_times() -> None:
    side: Any = Answering(ANSWER)
    assert await tokens_per_s(side, [(1,), (2,)], Ticking()) == 2 * OF_A_CLIENT * ANSWER / 2
    assert sorted(side.asked) == [(1,)] * OF_A_CLIENT + [(2,)] * OF_A_CLIENT


async def test_prompts_whose_answers_end_early_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_http, "prompts", lambda *_: [(1,), (2,)])
    whole: Any = Answering(ANSWER)
    assert await spec_http.long_prompts(whole, 2) == [(1,), (2,)] == whole.asked
    short: Any = Answering(ANSWER - 1)
    with pytest.raises(RuntimeError, match="0 of 2 answers are long enough, expected 1"):
        await spec_http.long_prompts(short, 1)
