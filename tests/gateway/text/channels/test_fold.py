import pytest

from gateway.text.channels.fold import Whole, WholeCall, ends_with_calls, fold
from gateway.words.events import CallBegin, CallBroken, CallDelta, CallEnd, Event, ReasoningDelta, TextDelta


def test_the_fold_of_events() -> None:
    events: list[Event] = [
        *(ReasoningDelta("a"), TextDelta("b"), ReasoningDelta("c"), CallBegin(0, "one", "f"), CallDelta(0, "{")),
        *(CallDelta(0, "}"), CallEnd(0), TextDelta("d"), CallBegin(1, "two", "g"), CallEnd(1)),
    ]
    assert fold(events) == Whole("bd", "ac", (WholeCall("one", "f", "{}"), WholeCall("two", "g", "")))
    assert fold([]) == Whole("", "", ())


def test_a_broken_call_is_none_and_those_beside_it_keep_their_arguments() -> None:
    events: list[Event] = [
        *(CallBegin(0, "one", "f"), CallDelta(0, "{"), CallBroken(0), TextDelta("{oops")),
        *(CallBegin(1, "two", "g"), CallDelta(1, "{}"), CallEnd(1)),
    ]
    assert fold(events) == Whole("{oops", "", (WholeCall("two", "g", "{}"),))


@pytest.mark.parametrize(
    ("reason", "num_calls", "wanted"),
    [("stop", 0, False), ("stop", 1, True), ("stop", 3, True), ("length", 2, False), ("abort", 1, False)],
)
def test_a_cut_answer_does_not_end_with_calls(reason: str, num_calls: int, wanted: bool) -> None:
    assert ends_with_calls(reason, num_calls) is wanted
    assert not ends_with_calls(reason, num_calls, num_broken=1)
