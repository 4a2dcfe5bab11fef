"""What is found out about an endpoint before a run, and each way in which it is of no use."""

from typing import Any

import pytest

from loadtest.drive.server import check_turns, counted_between, find_model, metrics, parse_metrics, probe
from loadtest.drive.talk import COMPLETIONS, Asking, TokenHistory
from loadtest.figures.record import Counting
from loadtest.http_exchange import Connections, Server
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock
from tests.loadtest.openai_stand_in import STREAM, StandIn, standing_in, tokens

CLOCK = MonotonicClock()
REFUSED = b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_the_first_model_is_taken_unless_one_is_named() -> None:
    async with standing_in(StandIn(tokens)) as server:
        assert (await find_model(server, CLOCK, None)).model == "stand-in"
        assert (await find_model(server, CLOCK, "stand-in")).context is None
        with pytest.raises(
            ConfigError, match=r"^--model: got gpt, expected a model of http://127.0.0.1:\d+: stand-in$"
        ):
            await find_model(server, CLOCK, "gpt")


async def test_nobody_there_is_one_sentence() -> None:
    async with standing_in(StandIn(tokens)) as server:
        pass
    with pytest.raises(ConfigError, match=r"^nothing answers at http://127.0.0.1:\d+: ConnectionRefusedError"):
        await find_model(server, CLOCK, None)


def asking(server: Server) -> Asking:
    return Asking(Connections(server, CLOCK, keep=False), COMPLETIONS, "m", TokenHistory)


async def test_a_probe_asks_for_what_counts_tokens() -> None:
    stand_in = StandIn(tokens)
    async with standing_in(stand_in) as server:
        probed = await probe(asking(server), CLOCK, (5, 6))
    [body] = stand_in.bodies
    assert body["return_token_ids"] and body["stream_options"]["continuous_usage_stats"]
    assert (probed.is_plain, probed.counting) == (False, Counting.USAGE)
    with pytest.raises(ConfigError, match=r"^--num-turns: the endpoint returns no token ids"):
        check_turns(probed, has_later_turns=True)
    check_turns(probed, has_later_turns=False)


async def test_an_endpoint_that_refuses_those_fields_is_asked_without() -> None:
    class Strict(StandIn):
        async def _answer(self, body: dict[str, Any], writer: Any) -> None:
            self.status = REFUSED if "return_token_ids" in body else STREAM
            await super()._answer(body, writer)

    stand_in = Strict(tokens)
    async with standing_in(stand_in) as server:
        probed = await probe(asking(server), CLOCK, "Hello")
    assert probed.is_plain and probed.asking.fields == {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("stand_in", "words"),
    [
        (StandIn(lambda _: [b'{"choices": [{"text": "all at once"}]}']), "the answer is no stream of events"),
        (StandIn(lambda _: [b'{"error": {"message": "no prompt"}}'], REFUSED), "HTTP 400: no prompt"),
    ],
)
async def test_an_answer_of_no_use_is_one_sentence(stand_in: StandIn, words: str) -> None:
    async with standing_in(stand_in) as server:
        with pytest.raises(ConfigError, match=rf"^a first request to /v1/completions failed: {words}"):
            await probe(asking(server), CLOCK, (5,))


def test_counters_are_compared_and_gauges_left_out() -> None:
    before = parse_metrics('# HELP x y\nseen_total{role="a b"} 3\nwaiting 4\nwait_seconds_sum 1.5\nsame_total 9\n')
    after = parse_metrics('seen_total{role="a b"} 5\nwaiting 9\nwait_seconds_sum 2\nnew_total 1\nsame_total 9\n')
    assert counted_between(before, after) == {'seen_total{role="a b"}': 2, "wait_seconds_sum": 0.5, "new_total": 1}
    assert counted_between(None, after) == {}
    assert parse_metrics("<html>no metrics</html>") is None


async def test_an_endpoint_without_metrics_has_none() -> None:
    async with standing_in(StandIn(tokens)) as server:  # answers every GET with its models
        assert await metrics(server, CLOCK) is None
    assert await metrics(server, CLOCK) is None
