"""The fake's experts are skewed and exact: a token that has another one, or does not come back, changes the text."""

from dataclasses import replace
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model import fake_experts
from model.experts import Experts
from model.fake_experts import COUNT, SECONDS, Scaled, lost, mixture, second_of
from protocol.messages_group import StepShape
from tests.doubles.hash_model import FakeRunner
from tests.model.driving import Lanes
from tests.model.ranks import MetCollectives, met

CPU = torch.device("cpu")
VOCAB = 997


def ids_of(count: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(0, 2**31))
def test_nothing_is_lost_whatever_experts_a_launch_has(num_tokens: int, seed: int) -> None:
    assert lost(ids_of(num_tokens, seed), None, None).tolist() == [0] * num_tokens


def test_the_choice_is_skewed() -> None:
    """Of a launch of 3 tokens most experts have none; two have none of any."""
    seconds = second_of(torch.arange(VOCAB))
    counts = seconds.bincount(minlength=COUNT).tolist()
    assert counts[0] == 0 and counts[6:] == [0, 0] and min(counts[1:6]) > 0
    assert 0.4 < counts[1] / VOCAB < 0.6 and set(SECONDS) == {1, 2, 3, 4, 5}
    assert min(len(set(three)) for three in seconds[:300].view(-1, 3).tolist()) == 1


def broken(index: int, expert: int) -> Experts:
    """The mixture with another expert in the place of one."""
    whole = mixture(CPU)
    experts = [*cast("tuple[Scaled, ...]", whole.experts)]
    experts[index] = Scaled(1 + expert)
    return replace(whole, experts=tuple(experts))


@pytest.mark.parametrize("expert", range(6))
def test_another_expert_changes_the_text(expert: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = ids_of(50).tolist()
    runner = FakeRunner(VOCAB, has_experts=True)
    assert Lanes(runner, 4).generate(prompt, 5) == runner.expected_tokens(prompt, 5)
    monkeypatch.setattr(fake_experts, "mixture", lambda device: broken(expert, expert + 1))
    assert Lanes(runner, 4).generate(prompt, 5) != runner.expected_tokens(prompt, 5)


@pytest.mark.parametrize("counts", [(1, 0), (0, 0), (7, 2), (0, 3, 0, 1)])
def test_ranks_lose_nothing_also_without_tokens(counts: tuple[int, ...]) -> None:
    step = StepShape(1, counts)

    def main(ranks: MetCollectives) -> list[int]:
        found: list[int] = lost(ids_of(counts[ranks.rank], ranks.rank), ranks, step).tolist()
        assert [operation for operation, _, _ in ranks.entered] == ["gather", "exchange"]
        return found

    assert met(len(counts), main) == [[0] * count for count in counts]


def test_what_does_not_come_back_from_a_rank_is_noticed() -> None:
    class Losing(MetCollectives):
        """Gives zeros for what rank 1 has given."""

        def exchange(self, parts_RPE: Tensor, step: StepShape) -> Tensor:
            """See Collectives."""
            taken_RPE = super().exchange(parts_RPE, step)
            taken_RPE[1] = 0
            return taken_RPE

    def main(ranks: MetCollectives) -> int:
        return int((lost(ids_of(5) + 1, Losing(ranks.meeting, ranks.rank), StepShape(1, (5, 5))) < 0).sum())

    assert met(2, main) == [5, 5]
