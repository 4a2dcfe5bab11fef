"""Verdicts on answers: what is right, clear, wrong or lost."""

from itertools import islice
from typing import Any

import orjson
import pytest

from bench.soak.work import BAD, asks, body_of, judge, turns
from loadtest.verify.answers import Answer, Choice, Heard
from loadtest.verify.judge import Verdict

EXPECTED: Answer = {0: Choice((5, 6, 7), "length"), 1: Choice((8,), "stop")}
ERROR = {"error": {"message": "m", "type": "t", "code": "c"}}


def choice(index: int, ids: list[int], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "token_ids": ids, "finish_reason": finish}]}


WHOLE = [choice(0, [5]), choice(1, [8], "stop"), choice(0, [6, 7], "length")]


def streamed(*events: Any, status: int = 200, done: bool = False, **more: Any) -> Heard:
    heard = Heard(status=status, **more)
    for event in events:
        heard.stream_line(b"data: " + orjson.dumps(event))
        heard.stream_line(b"")
    if done:
        heard.stream_line(b"data: [DONE]")
    return heard


@pytest.mark.parametrize(
    "heard, verdict",
    [
        (streamed(*WHOLE, done=True), Verdict.EXACT),
        (streamed(*WHOLE, done=True, status=0, broken="cut off"), Verdict.EXACT),
        (streamed(*WHOLE[:2], ERROR), Verdict.ERROR),
        (streamed(ERROR, status=503), Verdict.ERROR),
        (streamed(WHOLE[0], left=True, status=0), Verdict.LEFT),
        (streamed(WHOLE[0], {"error": "no object"}), Verdict.WRONG),
        (streamed(ERROR, status=500), Verdict.WRONG),
        (streamed(ERROR, status=400), Verdict.WRONG),
        (streamed(*WHOLE[:2], done=True), Verdict.TRUNCATED),  # an unfinished answer with [DONE]
        (streamed(choice(0, [5, 6, 7], "stop"), WHOLE[1], done=True), Verdict.WRONG),  # another finish
        (streamed(choice(0, [5, 9])), Verdict.WRONG),
        (streamed(choice(0, [9]), left=True), Verdict.WRONG),
        (streamed(choice(0, [9]), ERROR), Verdict.WRONG),  # an error does not excuse what came before it
        (streamed(choice(0, [5, 6, 7, 7])), Verdict.WRONG),  # a duplicate
        (streamed(choice(2, [5])), Verdict.WRONG),
        (streamed(*WHOLE, ERROR, done=True), Verdict.WRONG),  # [DONE] after an error
        (streamed({"choices": [{"index": 0}]}), Verdict.WRONG),
        (streamed(*WHOLE), Verdict.TRUNCATED),  # no [DONE]
        (streamed(status=0, broken="no end within 90 s", is_late=True), Verdict.HUNG),
    ],
)
def test_verdicts(heard: Heard, verdict: Verdict) -> None:
    judged, told = judge(heard, EXPECTED, gateway_was_hit=False)
    assert judged == verdict
    assert bool(told) == (verdict in BAD)


def test_a_cut_is_excused_by_a_dead_gateway_and_wrong_tokens_by_nothing() -> None:
    assert judge(streamed(WHOLE[0], status=0, broken="cut off"), EXPECTED, True)[0] == Verdict.CUT
    assert judge(streamed(choice(0, [9]), status=0, broken="cut off"), EXPECTED, True)[0] == Verdict.WRONG
    assert (
        judge(streamed(WHOLE[0]), EXPECTED, True)[0] == Verdict.TRUNCATED
    )  # the end of a stream is no broken connection


def test_an_answer_that_is_not_streamed() -> None:
    heard = Heard(status=200)
    both = {"choices": [*choice(0, [5, 6, 7], "length")["choices"], *choice(1, [8], "stop")["choices"]]}
    heard.whole_line(orjson.dumps(both))
    assert judge(heard, EXPECTED, False)[0] == Verdict.EXACT
    refused = Heard(status=503)
    refused.whole_line(orjson.dumps(ERROR))
    assert judge(refused, EXPECTED, False)[0] == Verdict.ERROR


def test_asks_are_mixed_and_reproducible() -> None:
    asked = asks(1, 24, 500)
    assert asked == asks(1, 24, 500) != asks(2, 24, 500)
    assert len(set(asked)) == 24
    assert {ask.temperature > 0 for ask in asked} == {ask.ignore_eos for ask in asked} == {True, False}
    assert {ask.n for ask in asked} == {1, 2, 3} and len({ask.max_tokens for ask in asked}) > 3
    assert all(max(ask.prompt) < 500 for ask in asked)
    assert orjson.loads(body_of(asked[0], True))["stream"] is True


def test_so_many_leave() -> None:
    made = list(islice(turns(1, asks(1, 4, 500), 0.2), 4000))
    leaving = [turn.leave_after_s for turn in made if turn.leave_after_s is not None]
    assert 0.17 < len(leaving) / 4000 < 0.23
    assert min(leaving) < 0.1 and max(leaving) > 1
    assert 0.45 < sum(turn.stream for turn in made) / 4000 < 0.55
