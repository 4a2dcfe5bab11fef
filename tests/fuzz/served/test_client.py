"""A client follows an order: which requests, until when, with or without their grammars; and what came of each."""

import json
from collections.abc import Callable, Sequence

import httpx
import pytest

from runtime.clock import MonotonicClock
from tests.fuzz.served import asks, client
from tests.fuzz.served.client import Done, Order, followed

ANSWER = {"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}


@pytest.fixture(autouse=True)
def own_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """The public suite may not be downloaded."""
    monkeypatch.setattr(asks, "suite", lambda: [{"type": "integer"}])


def followed_by(
    order: Order, answer: Callable[[httpx.Request], httpx.Response]
) -> tuple[Sequence[Done], Sequence[bytes]]:
    """What became of an order, and which bodies were sent."""
    sent: list[bytes] = []

    def answered(request: httpx.Request) -> httpx.Response:
        sent.append(request.content)
        return answer(request)

    with httpx.Client(transport=httpx.MockTransport(answered), base_url="http://x") as http:
        return list(followed(http, 1, order)), sent


def test_the_numbers_of_an_order_are_asked_in_turn() -> None:
    order = Order(first=3, step=4, until=MonotonicClock().now() + 1000, most=3, is_calm=False)
    done, sent = followed_by(order, lambda _: httpx.Response(200, json=ANSWER))
    assert [each.number for each in done] == [3, 7, 11]
    assert sent == [asks.ask(1, number).raw for number in (3, 7, 11)]
    assert all(each.ended >= each.began for each in done)


def test_nothing_is_asked_when_the_time_is_over() -> None:
    order = Order(first=0, step=1, until=0.0, most=3, is_calm=False)
    assert followed_by(order, lambda _: httpx.Response(200, json=ANSWER)) == ([], [])


def test_calm_requests_have_no_grammar() -> None:
    order = Order(first=0, step=1, until=MonotonicClock().now() + 1000, most=5, is_calm=True)
    done, sent = followed_by(order, lambda _: httpx.Response(200, json=ANSWER))
    assert [(each.family, each.kind, each.is_finding) for each in done] == 5 * [("calm", "cut", False)]
    assert all(set(json.loads(raw)) <= set(asks.CALM_FIELDS) for raw in sent)


def test_a_request_without_an_answer_and_an_answer_that_is_cut_are_findings() -> None:
    def hangs(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    def cut(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError("peer closed", request=request)

    order = Order(first=0, step=1, until=MonotonicClock().now() + 1000, most=1, is_calm=False)
    kinds = [followed_by(order, answer)[0][0] for answer in (hangs, cut, lambda _: httpx.Response(502, text="<html>"))]
    assert [each.kind for each in kinds] == ["hangs", "connection cut", "no error object"]
    assert all(each.is_finding for each in kinds)


def test_a_verdict_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def forever(*_: object) -> None:
        raise client.TooLong

    monkeypatch.setattr(client, "verdict", forever)
    order = Order(first=0, step=1, until=MonotonicClock().now() + 1000, most=1, is_calm=False)
    ((done,), _) = followed_by(order, lambda _: httpx.Response(200, json=ANSWER))
    assert (done.kind, done.is_finding) == ("not judged", False)
