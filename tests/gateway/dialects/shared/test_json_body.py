import pytest

from gateway.dialects.shared.json_body import check_list
from gateway.words.limits import Limits
from protocol.errors import BadRequest

LIMITS = Limits(context_length=100, vocab_size=50, pool_tokens=160, prefill_pool_tokens=160, page_size=16)


def test_a_list_that_is_too_long_whatever_is_in_it() -> None:
    prompts: list[object] = [[1] * 100, ["a"] * 101, [[1]] * 101, "a" * 101, {}, None, [], 5]
    for prompt in prompts:
        check_list(prompt, LIMITS)
    check_list([1] * 101, Limits())
    with pytest.raises(BadRequest, match="context length is 100 tokens, but prompt has 101 tokens") as caught:
        check_list([1] * 101, LIMITS)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
