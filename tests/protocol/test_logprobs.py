import math

import pytest

from protocol.errors import WireError
from protocol.logprobs import Logprobs, LogprobsAsked, TokenLogprob, checked, of_tokens

ONE = TokenLogprob(-0.5, 1, ((7, -0.5), (3, -2.0)))
OTHER = TokenLogprob(-math.inf, 9, ((7, -0.25), (3, -3.0)))
ASKED = LogprobsAsked(2)


def test_they_travel_exactly() -> None:
    assert of_tokens((ONE, OTHER)).tokens() == (ONE, OTHER)
    assert of_tokens((ONE, OTHER)).part(1, 2).tokens() == (OTHER,)
    assert of_tokens(()).tokens() == ()


def test_what_was_asked_for_passes() -> None:
    assert checked(of_tokens((ONE, OTHER)), ASKED, 2) == (ONE, OTHER)
    assert checked(None, None, 2) == ()
    few = of_tokens((TokenLogprob(-1.0, 1, ((0, -1.0),)),))
    assert len(checked(few, ASKED, 1)) == 1, "a vocabulary may be smaller than what is asked for"


@pytest.mark.parametrize(
    ("found", "asked", "num_tokens", "words"),
    [
        (None, ASKED, 1, "got none, expected the other"),
        (of_tokens((ONE,)), None, 1, "got some, expected the other"),
        (of_tokens((ONE,)), ASKED, 2, "expected those of 2 tokens"),
        (of_tokens((ONE,)), LogprobsAsked(1), 1, "with 2 likeliest tokens each"),
        (Logprobs(2, b"abc"), ASKED, 1, "got 3 bytes"),
        (of_tokens((TokenLogprob(0.5, 1, ONE.top),)), ASKED, 1, "got 0.5, expected at most 0"),
        (of_tokens((TokenLogprob(math.nan, 1, ONE.top),)), ASKED, 1, "got nan"),
        (of_tokens((TokenLogprob(-1.0, 0, ONE.top),)), ASKED, 1, "got rank 0"),
        (of_tokens((TokenLogprob(-1.0, 1, ((-1, -1.0), (0, -2.0))),)), ASKED, 1, "a negative id"),
    ],
)
def test_what_makes_no_sense_is_refused(
    found: Logprobs | None, asked: LogprobsAsked | None, num_tokens: int, words: str
) -> None:
    with pytest.raises(WireError, match=words):
        checked(found, asked, num_tokens)
