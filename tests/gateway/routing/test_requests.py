from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.members import WorkerKey
from gateway.routing.pairing import Need
from gateway.routing.requests import Delivery, RequestRecord, Requests
from gateway.words.prompt import Prompt
from protocol.errors import BatonError, WireError
from protocol.logprobs import LogprobsAsked, TokenLogprob, of_tokens
from protocol.messages_gateway import ChoiceTokens, FinishReason, SamplingParams

DECODE, PREFILL = WorkerKey("d", 1), WorkerKey("p", 2)
PROMPT = (1, 2, 3, 4)
EOS = 99


class Nobody:
    """See Listener. The records tell it nothing: Dispatch does."""

    def on_tokens(self, delivery: Delivery) -> None:
        raise AssertionError(delivery)

    def on_failed(self, error: BatonError) -> None:
        raise error


def new_requests(max_tokens: int = 8, num_choices: int = 1, attempt: int = 0) -> Requests:
    requests = Requests()
    record = requests.add("r", Prompt(PROMPT, SamplingParams(max_tokens, eos_token_ids=(EOS,)), num_choices), Nobody())
    for _ in range(attempt + 1):
        record.attempts.clear()
        requests.begin(record, record.next_attempt(range(num_choices), DECODE, PREFILL))
    return requests


def news(seq: int, *token_ids: int, finish: str = "", attempt: int = 0, choice: int = 0) -> ChoiceTokens:
    return ChoiceTokens("r", attempt, choice, seq, token_ids, finish)


def accept(requests: Requests, message: ChoiceTokens) -> Delivery | None:
    found = requests.reported(message)
    return None if found is None else found[0].accept(found[1], message)


def deliver(requests: Requests, *messages: ChoiceTokens) -> list[int]:
    found: list[int] = []
    for message in messages:
        accepted = accept(requests, message)
        found += accepted.token_ids if accepted is not None else ()
    return found


@pytest.mark.parametrize(
    "late", [news(0, 20), news(1, 11, 20), news(0, 10, 11, 20, 13), news(2, 20, finish="stop"), news(1, 21, 12, 13)]
)
def test_repeated_tokens_that_differ_make_no_sense(late: ChoiceTokens) -> None:
    """Whoever sent them goes on from another text than the client has."""
    requests = new_requests()
    assert deliver(requests, news(0, 10, 11, 12)) == [10, 11, 12]
    with pytest.raises(WireError, match=f"from {late.seq} on differ"):
        accept(requests, late)
    assert deliver(requests, news(1, 11, 12, 13)) == [13]


@pytest.mark.parametrize("poorer", [news(1, 11), news(1, 11, 12)])
def test_of_two_early_messages_the_one_that_says_more_is_kept(poorer: ChoiceTokens) -> None:
    richer = news(1, 11, 12, finish="stop")
    for pair in ((poorer, richer), (richer, poorer)):
        requests = new_requests()
        assert deliver(requests, *pair, news(0, 10)) == [10, 11, 12]
        assert record_of(requests).choices[0].finish is FinishReason.STOP


def test_finish_that_comes_with_a_repeated_token() -> None:
    requests = new_requests()
    assert deliver(requests, news(0, 10)) == [10]
    assert accept(requests, news(0, 10, finish="stop")) == Delivery(0, (), FinishReason.STOP)
    assert record_of(requests).is_done


def test_other_attempts_and_unknown_requests_are_dropped() -> None:
    requests = new_requests(attempt=1)
    assert deliver(requests, news(0, 10, attempt=0), news(0, 12, attempt=1)) == [12]
    assert accept(requests, ChoiceTokens("other", 0, 0, 0, (1,))) is None
    assert requests.num_dropped == 2


def test_nothing_after_finish_or_close() -> None:
    requests = new_requests(num_choices=2)
    assert deliver(requests, news(0, 10, finish="stop"), news(1, 11)) == [10]
    record = requests.find("r")
    assert record is not None and not record.is_done
    record.choices[1].close()
    assert deliver(requests, news(0, 10, choice=1)) == []
    assert record.is_done and record.has_ended(record.attempts[0])


@pytest.mark.parametrize(
    "message",
    [news(-1, 1), news(7, 1, 2), news(100, 1), news(0, 1, choice=1), news(0, 1, choice=-1)],
    ids=["negative", "too long", "far", "no such choice", "negative choice"],
)
def test_nonsense_is_refused(message: ChoiceTokens) -> None:
    with pytest.raises(WireError, match="choice"):
        accept(new_requests(), message)


def test_an_end_before_what_was_received_is_refused() -> None:
    requests = new_requests()
    deliver(requests, news(0, 1, 2, 3))
    with pytest.raises(WireError, match="ends at 1"):
        accept(requests, news(0, 1, finish="stop"))


def test_needing_and_remove() -> None:
    requests = new_requests()
    [(record, _)] = requests.needing(DECODE)
    assert list(requests) == [record] and requests.num_choices == 1
    requests.remove(record)
    assert list(requests) == [] and requests.find("r") is None and requests.num_choices == 0


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


def record_of(requests: Requests) -> RequestRecord:
    record = requests.find("r")
    assert record is not None
    return record


def test_the_next_attempt_goes_on_behind_what_was_received() -> None:
    requests = new_requests()
    record = record_of(requests)
    assert deliver(requests, news(0, 10, 11), news(3, 13)) == [10, 11]
    record.attempts.clear()
    second = record.next_attempt(range(1), WorkerKey("d2", 5))
    requests.begin(record, second)
    assert second.number == 1 and second.need == Need(6, 1, 6) and record.choices[0].num_attempts == 2
    told = record.message(second, None)
    assert (told.attempt, told.prompt_ids, told.num_replayed, told.first_choice) == (1, (*PROMPT, 10, 11), 2, 0)
    assert deliver(requests, news(2, 12, attempt=0), news(2, 22, attempt=1)) == [22], "13 came from the first attempt"
    assert deliver(requests, news(3, 23, attempt=1)) == [23] and requests.num_dropped == 1
    assert record.pairs == ["p+d", "d2"]


def test_an_attempt_that_was_told_to_nobody_does_not_count() -> None:
    requests = new_requests()
    record = record_of(requests)
    assert record.next_attempt(range(1), DECODE).number == 1
    assert record.choices[0].num_attempts == 1 and list(record.attempts) == [0] and record.pairs == ["p+d"]
    assert requests.num_attempts == 1
    assert record.next_attempt(range(1), DECODE).number == 1


def test_choices_with_outputs_go_alone_and_neighbours_without_together() -> None:
    requests = new_requests(num_choices=7)
    record = record_of(requests)
    deliver(requests, news(0, 10, choice=2), news(0, 11, choice=5), news(0, EOS, choice=3, finish="stop"))
    assert record.open_groups(range(7)) == [range(2), range(2, 3), range(4, 5), range(5, 6), range(6, 7)]
    record.choices[0].close()
    assert record.open_groups(range(3)) == [range(1, 2), range(2, 3)]
    assert record.need_of(range(2)) == Need(4, 2, 8) and record.need_of(range(2, 3)) == Need(5, 1, 7)
    record.attempts.clear()
    attempt = record.next_attempt(range(5, 6), DECODE)
    requests.begin(record, attempt)
    assert record.message(attempt, None).first_choice == 5
    with pytest.raises(WireError, match="choice 4, expected one of the attempt"):
        accept(requests, news(0, 1, choice=4, attempt=1))


def test_what_has_its_last_token_ends_without_another_attempt() -> None:
    requests = new_requests(max_tokens=3, num_choices=4)
    record = record_of(requests)
    deliver(requests, news(0, 1, 2, 3, choice=0), news(0, 5, EOS, choice=1), news(0, 1, 2, choice=2))
    assert record.finish_what_ends(range(4)) == [
        Delivery(0, (), FinishReason.LENGTH),
        Delivery(1, (), FinishReason.STOP),
    ]
    assert record.open_groups(range(4)) == [range(2, 3), range(3, 4)]
    assert record.finish_what_ends(range(4)) == []


# ---- log-probabilities ----


def asking(max_tokens: int = 8) -> Requests:
    params = SamplingParams(max_tokens, eos_token_ids=(EOS,), logprobs=LogprobsAsked(1))
    requests = Requests()
    record = requests.add("r", Prompt(PROMPT, params, 1), Nobody())
    requests.begin(record, record.next_attempt(range(1), DECODE, PREFILL))
    return requests


def score(token_id: int) -> TokenLogprob:
    return TokenLogprob(-float(token_id), 2, ((token_id + 1, -0.5),))


def scored(message: ChoiceTokens) -> ChoiceTokens:
    return replace(message, logprobs=of_tokens(tuple(map(score, message.token_ids))))


def told(requests: Requests, *messages: ChoiceTokens) -> list[tuple[int, TokenLogprob]]:
    found: list[tuple[int, TokenLogprob]] = []
    for message in messages:
        if (accepted := accept(requests, message)) is not None:
            found += zip(accepted.token_ids, accepted.logprobs, strict=True)
    return found


ALL = [(token_id, score(token_id)) for token_id in (10, 11, 12)]


@pytest.mark.parametrize(
    "sent",
    [
        [news(0, 10), news(0, 10), news(1, 11, 12)],
        [news(0, 10, 11), news(0, 10), news(2, 12)],  # decode's repeat of the first token comes first
        [news(1, 11), news(2, 12), news(0, 10)],
        [news(2, 12), news(0, 10), news(0, 10, 11, 12)],
    ],
)
def test_every_token_has_its_log_probability_once(sent: list[ChoiceTokens]) -> None:
    assert told(asking(), *map(scored, sent)) == ALL


def test_the_next_attempt_tells_no_log_probability_again() -> None:
    requests = asking()
    assert told(requests, scored(news(0, 10, 11))) == ALL[:2]
    record = record_of(requests)
    record.attempts.clear()
    requests.begin(record, record.next_attempt(range(1), WorkerKey("d2", 5)))
    assert told(requests, scored(news(0, 10, 11, 12, attempt=1)), scored(news(2, 12, attempt=1))) == ALL[2:]


def test_a_finish_with_a_repeated_token_repeats_no_log_probability() -> None:
    requests = asking()
    assert told(requests, scored(news(0, 10))) == ALL[:1]
    assert accept(requests, scored(news(0, 10, finish="stop"))) == Delivery(0, (), FinishReason.STOP)


def test_log_probabilities_that_are_missing_or_unasked_make_no_sense() -> None:
    with pytest.raises(WireError, match="logprobs: got none"):
        accept(asking(), news(0, 10))
    with pytest.raises(WireError, match="logprobs: got some"):
        accept(new_requests(), scored(news(0, 10)))
