"""Each stored input, read as the gateway reads it: an answer or a refusal, in this process, which goes on."""

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, outcome_of, seeds_of

CASES = [(target, name) for target in TARGETS for name in seeds_of(target)]


@pytest.mark.parametrize(("target", "name"), CASES)
def test_a_stored_input_is_answered_or_refused(target: str, name: str) -> None:
    outcome = outcome_of(target, seeds_of(target)[name])
    assert outcome and len(outcome) < 1000


def test_every_target_has_seeds_and_some_that_are_served() -> None:
    folders = {path.name for path in Path(__file__).with_name("seeds").iterdir()}
    assert folders == set(TARGETS)
    for target in TARGETS:
        outcomes = {outcome_of(target, raw) for raw in seeds_of(target).values()}
        assert outcomes & {"ok", "waits open"}, target
    refusals = [outcome_of("body", raw) for raw in seeds_of("body").values()]
    assert len({each for each in refusals if each.startswith("BadRequest")}) > 10
