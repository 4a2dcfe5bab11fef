import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation.checks import UNKNOWN_REST, max_tokens, prompt_too_long
from gateway.words.limits import ContextLengthExceeded, Limits
from gateway.words.places import MAX_TOKENS, PROMPTS
from protocol.errors import BadRequest

LIMITS = Limits(context_length=100, vocab_size=50, pool_tokens=160, prefill_pool_tokens=160, page_size=16)


def test_what_is_asked_is_given() -> None:
    assert max_tokens(60, 40, 16, 1, PROMPTS, LIMITS) == 40


@given(st.integers(1, 300), st.integers(1, 3), st.sampled_from([None, 20, 100]), st.sampled_from([None, 40, 120]))
def test_who_sent_no_max_tokens_hears_nothing_of_it(
    num_prompt: int, num_choices: int, context: int | None, pool: int | None
) -> None:
    limits = Limits(context_length=context, pool_tokens=pool, page_size=4)
    told: ContextLengthExceeded | None = None
    try:
        max_tokens(num_prompt, None, 16, num_choices, PROMPTS, limits)
    except ContextLengthExceeded as error:
        told = error
    if told is not None:
        assert told.param == "prompts" and "max_tokens" not in told.message
        assert context is None or told.message.startswith(f"This model's maximum context length is {context} tokens")


def test_defaults_shrink_to_what_is_left() -> None:
    assert max_tokens(60, None, 16, 1, PROMPTS, LIMITS) == 16
    assert max_tokens(90, None, 16, 1, PROMPTS, LIMITS) == 10
    assert max_tokens(60, None, None, 1, PROMPTS, LIMITS) == 40
    assert max_tokens(60, None, None, 1, PROMPTS, Limits()) == UNKNOWN_REST
    assert max_tokens(60, None, None, 4, PROMPTS, LIMITS) == 16 - 12 + 1  # one page each


def test_more_than_the_pool() -> None:
    with pytest.raises(
        BadRequest, match=r"can hold 160 tokens, but prompts has 60 tokens and max_tokens is 40 for each of 4"
    ):
        max_tokens(60, 40, 16, 4, PROMPTS, LIMITS)
    with pytest.raises(BadRequest, match="KV memory"):
        max_tokens(60, None, 16, 1, PROMPTS, Limits(context_length=100, pool_tokens=32, page_size=16))
    with pytest.raises(BadRequest, match="KV memory"):
        max_tokens(60, None, 16, 1, PROMPTS, Limits(pool_tokens=320, prefill_pool_tokens=32, page_size=16))


@pytest.mark.parametrize(
    ("limits", "longest"),
    [
        (Limits(), None),
        (Limits(context_length=100), 100),
        (Limits(context_length=100, pool_tokens=99, page_size=16), 99),
        (Limits(context_length=100, pool_tokens=200, prefill_pool_tokens=50, page_size=16), 50),
    ],
)
def test_a_prompt_beyond_the_longest_could_never_be_served(limits: Limits, longest: int | None) -> None:
    assert limits.longest_prompt == longest
    if longest is not None:
        with pytest.raises(ContextLengthExceeded):
            max_tokens(longest + 1, 1, 16, 1, PROMPTS, limits)
        told = prompt_too_long((*PROMPTS, 3), 7, limits)
        assert told.param == "prompts" and f"prompts[3] has 7 characters, more than {longest} tokens" in told.message
        beside = prompt_too_long((*PROMPTS, 3), 7, limits, (" with ", MAX_TOKENS)).message
        assert f"prompts[3] with max_tokens has 7 characters, more than {longest} tokens" in beside
