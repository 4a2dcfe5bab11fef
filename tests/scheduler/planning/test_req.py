from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages_gateway import FinishReason, SamplingParams, finish_reason
from scheduler.planning.kv_manager import Holding
from scheduler.planning.req import Req, draw_of


def test_a_choice_ends_once() -> None:
    req = Req("r", 0, 0, (1, 2), SamplingParams(max_tokens=2))
    req.num_sampled = 1
    assert req.append((5,)) == (5,)
    assert req.finish is None
    req.num_sampled += 1
    assert req.append((6,)) == (6,)
    assert (req.outputs, req.finish, req.num_sampled) == ([5, 6], FinishReason.LENGTH, 2)
    with pytest.raises(AssertionError, match="takes no token"):
        req.append((7,))


def test_launched_outputs_are_counted_apart_from_known_ones() -> None:
    req = Req("r", 0, 0, (1,), SamplingParams(max_tokens=3))
    assert [(req.num_left, req.num_written) for req.num_sampled in range(4)] == [(3, 0), (2, 1), (1, 2), (0, 3)]
    assert req.outputs == []


def test_replayed_outputs_count_as_outputs_and_as_prompt() -> None:
    req = Req("r", 1, 0, (1, 2, 3, 40, 41), SamplingParams(max_tokens=5), num_replayed=2)
    assert (req.outputs, req.num_sampled, req.num_left, req.prompt_len) == ([40, 41], 2, 3, 5)
    req.num_sampled += 1
    assert req.num_written == 5  # the prompt; the token drawn last has no KV yet


@given(st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), max_size=8), st.integers(1, 9), st.integers(0, 4))
def test_runs_end_a_choice_as_single_tokens_do(runs: list[tuple[int, ...]], most: int, least: int) -> None:
    """Two launches are in flight at a time. Each is counted as one output until its result is known."""
    params = SamplingParams(max_tokens=most, min_tokens=least, stop_token_ids=(8,), eos_token_ids=(9,))
    req, expected, reason = Req("r", 0, 0, (1,), params), [], None
    for token in (token for run in runs for token in run):
        if reason is None:
            expected.append(token)
            reason = finish_reason(params, len(expected), token)

    req.num_sampled = 2
    for run in runs:
        if req.finish is None:
            req.append(run)
            assert req.num_sampled == len(req.outputs) + 1
            req.num_sampled += 1
    assert (req.outputs, req.finish) == (expected, reason)


def test_a_draw_in_a_grammar_has_the_outputs_before_the_one_that_it_draws() -> None:
    """With several draft layers a choice that comes back draws its last outputs once more."""
    req = Req("r", 0, 0, (1, 2), SamplingParams(max_tokens=9, grammar="a"))
    req.outputs, req.num_sampled = [5, 6, 7], 2
    assert draw_of(req, Holding(1, 1, [3], 1)).outputs == (5, 6)
    plain = replace(req, sampling=SamplingParams(max_tokens=9))
    assert draw_of(plain, Holding(1, 1, [3], 1)).outputs == ()
