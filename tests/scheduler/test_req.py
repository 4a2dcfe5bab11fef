import pytest

from protocol.request import FinishReason, SamplingParams
from scheduler.req import Req


def test_a_choice_ends_once() -> None:
    req = Req("r", 0, 0, (1, 2), SamplingParams(max_tokens=2))
    req.append(5)
    assert req.finish is None
    req.append(6)
    assert (req.outputs, req.finish) == ([5, 6], FinishReason.LENGTH)
    with pytest.raises(AssertionError, match="takes no token"):
        req.append(7)


def test_launched_outputs_are_counted_apart_from_known_ones() -> None:
    req = Req("r", 0, 0, (1,), SamplingParams(max_tokens=3, min_tokens=2, eos_token_ids=(9,)))
    assert [(req.num_left, req.bans_endings) for req.num_sampled in range(4)] == [
        (3, True),
        (2, True),
        (1, False),
        (0, False),
    ]
    assert req.outputs == []
