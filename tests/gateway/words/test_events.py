"""What a Step has, as writers ask for it."""

import pytest

from gateway.words.events import CallBegin, CallDelta, CallEnd, Finish, Reason, ReasoningDelta, Step, TextDelta
from gateway.words.scored import ScoredToken

CALL = (CallBegin(0, "call_0", "f"), CallDelta(0, "{}"), CallEnd(0))


@pytest.mark.parametrize(
    ("step", "text", "only_text", "num_chars"),
    [
        (Step(()), "", "", 0),
        (Step((), (7,)), "", "", 0),
        (Step((TextDelta("ab"),), (7,)), "ab", "ab", 2),
        (Step((TextDelta("ab"),), (7,), Finish(Reason.STOP, 7)), "ab", None, 2),
        (Step((TextDelta("ab"),), (7,), shown=(ScoredToken(7, 0, None),)), "ab", None, 2),
        (Step((ReasoningDelta("abc"),), (7,)), "", None, 3),
        (Step((TextDelta("ab"), *CALL, TextDelta("c")), (7,)), "abc", None, 5),
        (Step(CALL), "", None, 2),
    ],
)
def test_what_a_step_has(step: Step, text: str, only_text: str | None, num_chars: int) -> None:
    assert (step.text, step.only_text, step.num_chars) == (text, only_text, num_chars)
