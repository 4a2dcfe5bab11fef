from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.membership import WorkerKey
from gateway.pairing import Need
from gateway.requests import Requests
from protocol.errors import WireError
from protocol.messages_gateway import ChoiceTokens, Stamp
from protocol.request import FinishReason

DECODE, PREFILL = WorkerKey("d", 1), WorkerKey("p", 2)


def new_requests(max_tokens: int = 8, num_choices: int = 1, attempt: int = 0) -> Requests:
    requests = Requests()
    requests.add("r", Need(4, num_choices, max_tokens), DECODE, PREFILL, attempt)
    return requests


def news(seq: int, *token_ids: int, finish: str = "", attempt: int = 0, choice: int = 0) -> ChoiceTokens:
    return ChoiceTokens("r", attempt, choice, seq, token_ids, finish)


def deliver(requests: Requests, *messages: ChoiceTokens) -> list[int]:
    found: list[int] = []
    for message in messages:
        accepted = requests.accept(message)
        found += accepted[1].token_ids if accepted is not None else ()
    return found


def test_first_token_from_prefill_then_repeated_by_decode() -> None:
    requests = new_requests()
    assert deliver(requests, news(0, 10), news(0, 10), news(1, 11)) == [10, 11]


def test_first_token_after_everything_else() -> None:
    requests = new_requests()
    assert deliver(requests, news(1, 11), news(2, 12)) == []
    assert deliver(requests, news(0, 10)) == [10, 11, 12]


def test_finish_that_comes_with_a_repeated_token() -> None:
    requests = new_requests()
    assert deliver(requests, news(0, 10)) == [10]
    accepted = requests.accept(news(0, 10, finish="stop"))
    assert accepted is not None
    assert accepted[1].token_ids == () and accepted[1].finish is FinishReason.STOP
    assert accepted[0].is_done


def test_other_attempts_and_unknown_requests_are_dropped() -> None:
    requests = new_requests(attempt=1)
    assert deliver(requests, news(0, 10, attempt=0), news(0, 12, attempt=1)) == [12]
    assert requests.accept(ChoiceTokens("other", 0, 0, 0, (1,))) is None
    assert requests.num_dropped == 2


def test_nothing_after_finish_or_close() -> None:
    requests = new_requests(num_choices=2)
    assert deliver(requests, news(0, 10, finish="stop"), news(1, 11)) == [10]
    requests.close_choice("r", 1)
    assert deliver(requests, news(0, 10, choice=1)) == []
    record = requests.find("r")
    assert record is not None and record.is_done


@pytest.mark.parametrize(
    "message",
    [news(-1, 1), news(7, 1, 2), news(100, 1), news(0, 1, choice=1), news(0, 1, choice=-1)],
    ids=["negative", "too long", "far", "no such choice", "negative choice"],
)
def test_nonsense_is_refused(message: ChoiceTokens) -> None:
    with pytest.raises(WireError, match="choice"):
        new_requests().accept(message)


def test_an_end_before_what_was_received_is_refused() -> None:
    requests = new_requests()
    deliver(requests, news(0, 1, 2, 3))
    with pytest.raises(WireError, match="ends at 1"):
        requests.accept(news(0, 1, finish="stop"))


def test_stamps_running_on_and_remove() -> None:
    requests = new_requests()
    requests.add_stamps("r", 0, [Stamp("queued", 1.0, "d")])
    requests.add_stamps("r", 5, [Stamp("other attempt", 1.0, "d")])
    [record] = requests.running_on(DECODE)
    assert [stamp.name for stamp in record.stamps] == ["queued"]
    assert requests.running_on(PREFILL) == []
    assert requests.remove("r") is record and requests.remove("r") is None and len(requests) == 0


@given(st.data())
def test_any_order_and_any_repetition_give_the_same_tokens(data: st.DataObject) -> None:
    tokens = list(range(100, 100 + data.draw(st.integers(1, 12))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(tokens)), max_size=5)) | {0, len(tokens)})
    parts = [
        news(start, *tokens[start:end], finish="length" if end == len(tokens) else "") for start, end in pairwise(cuts)
    ]
    parts.append(news(0, tokens[0], finish="length" if len(tokens) == 1 else ""))  # prefill's copy
    sent = data.draw(st.permutations([*parts, *data.draw(st.lists(st.sampled_from(parts), max_size=4))]))
    requests = new_requests(max_tokens=len(tokens))
    assert deliver(requests, *sent) == tokens
    record = requests.find("r")
    assert record is not None and record.choices[0].finish is FinishReason.LENGTH
