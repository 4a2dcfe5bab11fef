"""One object per draft mode, chosen once."""

import pytest

from model.paged_kv import PagedKv
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.launches import PlainLaunches
from scheduler.execution.streams import InlineStream
from scheduler.speculation.draft_launches import DraftLaunches
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import make_executor


@pytest.mark.parametrize(
    ("num_layers", "shape", "modes"),
    [
        (1, DraftShape(3), ("Chain", "Quiet")),
        (1, DraftShape(3, 2, 6), ("Tree", "Quiet")),
        (3, DraftShape(3), ("Layers", "Layers")),
    ],
)
def test_a_draft_has_a_mode_that_proposes_and_one_that_does_not(
    num_layers: int, shape: DraftShape, modes: tuple[str, str]
) -> None:
    runner = FakeRunner(vocab_size=97, context_length=64, draft_seed=1, num_draft_layers=num_layers)
    launcher = make_executor(InlineStream(), runner=runner, kv=PagedKv(runner.kv_layout(4), 8), shape=shape).launcher
    assert isinstance(launcher, DraftLaunches)
    assert (type(launcher._proposing).__name__, type(launcher._quiet).__name__) == modes


def test_without_a_draft_launches_are_plain() -> None:
    assert isinstance(make_executor(InlineStream(), shape=NO_DRAFT).launcher, PlainLaunches)
