"""What a timed client makes of answers, good and bad."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.client import completion_body, model_name, refusal, stream_one
from loadtest.http_exchange import Broken, Server, exchange, get
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock
from tests.doubles.clock import VirtualClock
from tests.loadtest.openai_stand_in import StandIn, standing_in, tokens

CLOCK = MonotonicClock()
BODY = completion_body("m", [5, 6], 3)
TOKEN = b'data: {"choices":[{"index":0,"text":"x"}]}\n\n'


async def test_tokens_are_timed_and_usage_counts_them() -> None:
    clock = VirtualClock()

    def each_after_a_second(body: dict[str, Any]) -> Iterator[bytes | None]:
        for piece in tokens(body):
            clock.advance(1.0)
            yield piece

    stand_in = StandIn(each_after_a_second, pause_s=0.01)  # the client reads a piece before the next is made
    async with standing_in(stand_in) as server:
        timing = await stream_one(server, clock, BODY)
    assert (timing.error, timing.num_tokens, timing.itl_s) == ("", 3, (1.0, 1.0))
    assert timing.e2e_s == pytest.approx(timing.ttft_s + sum(timing.itl_s))
    sent = stand_in.bodies[0]
    assert (sent["prompt"], sent["max_tokens"], sent["ignore_eos"], sent["stream"]) == ([5, 6], 3, True, True)


async def test_time_counts_from_when_a_request_was_due() -> None:
    async with standing_in(StandIn(tokens)) as server:
        timing = await stream_one(server, CLOCK, BODY, CLOCK.now() - 5)
    assert timing.ttft_s > 5


async def test_a_line_may_come_in_pieces_and_chunks_count_where_usage_is_missing() -> None:
    pieces = [TOKEN[:20], TOKEN[20:] + TOKEN + b": a comment\n\ndata: [DO", b"NE]\n\n"]
    async with standing_in(StandIn(lambda _: pieces)) as server:
        timing = await stream_one(server, CLOCK, BODY)
    assert (timing.error, timing.num_tokens) == ("", 2)


@pytest.mark.parametrize(
    "pieces, words",
    [
        ([TOKEN], "without [DONE]"),
        ([TOKEN, None], "closed before the answer's end"),
        ([TOKEN, b'data: {"error": {"message": "worker lost"}}\n\n'], "worker lost"),
        ([TOKEN, b"data: nonsense\n\ndata: [DONE]\n\n"], "not JSON"),
        ([TOKEN, b"data: 5\n\ndata: [DONE]\n\n"], "not an event"),
    ],
)
async def test_an_answer_that_does_not_end_as_it_should_is_an_error(pieces: list[bytes | None], words: str) -> None:
    async with standing_in(StandIn(lambda _: pieces)) as server:
        timing = await stream_one(server, CLOCK, BODY)
    assert words in timing.error


async def test_a_refusal_is_told_in_the_servers_words() -> None:
    status = b"HTTP/1.1 429 Too Many Requests\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with standing_in(StandIn(lambda _: [b'{"error": "too many"}'], status)) as server:
        timing = await stream_one(server, CLOCK, BODY)
    assert timing.error == 'HTTP 429: {"error": "too many"}'


@pytest.mark.parametrize(
    "status, body, says",
    [
        (401, b'{"error": {"message": "no key"}}', "HTTP 401: no key; --api-key-file FILE names a file with the key"),
        (403, b"forbidden", "HTTP 403: forbidden; --api-key-file FILE names a file with the key"),
        (503, b'{"error": {"message": "no workers"}}', "HTTP 503: no workers"),
        (500, b"[]", "HTTP 500: []"),
    ],
)
def test_what_a_refusal_says(status: int, body: bytes, says: str) -> None:
    assert refusal(status, body) == says


async def test_a_key_that_is_missing_is_told_when_the_model_is_asked_for() -> None:
    async def locked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"error": {"message": "a key is needed"}}'
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(locked, "127.0.0.1", 0) as listener:
        server = Server("127.0.0.1", listener.sockets[0].getsockname()[1])
        with pytest.raises(ConfigError, match=r"^GET /v1/models: HTTP 401: a key is needed; --api-key-file FILE names"):
            await model_name(server, CLOCK)


async def test_nobody_there_and_no_http_are_errors() -> None:
    async with standing_in(StandIn(lambda _: [], status=b"SSH-2.0\r\n\r\n")) as server:
        assert "not HTTP" in (await stream_one(server, CLOCK, BODY)).error
    assert "refused" in (await stream_one(server, CLOCK, BODY)).error.lower()
    with pytest.raises(ConfigError, match="nothing answers at 127"):
        await model_name(server, CLOCK)


async def test_an_answer_without_end_is_given_up() -> None:
    async with standing_in(StandIn(tokens, pause_s=5)) as server:
        with pytest.raises(Broken, match=r"no end within 0.05 s"):
            await exchange(server, CLOCK, "POST", "/v1/completions", BODY, lambda _, __: True, timeout_s=0.05)


async def test_a_listener_hangs_up_and_a_cancelled_exchange_does_so_too() -> None:
    stand_in = StandIn(lambda _: [TOKEN] * 10_000, pause_s=0.001)
    async with standing_in(stand_in) as server:
        assert await exchange(server, CLOCK, "POST", "/v1/completions", BODY, lambda _, __: False) == 200
        task = asyncio.create_task(stream_one(server, CLOCK, BODY))
        await stand_in.asked.get()
        await stand_in.asked.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stand_in.left.get()
        await stand_in.left.get()
    assert len(stand_in.bodies) == 2


async def test_names_keys_and_paths() -> None:
    stand_in = StandIn(tokens)
    async with standing_in(stand_in) as server:
        assert await model_name(server, CLOCK) == "stand-in"
        url = f"http://127.0.0.1:{server.port}/prefix/v1/"
        assert Server.at(url, "") == Server("127.0.0.1", server.port, path="/prefix")
        await get(Server.at(url, "secret"), CLOCK, "/v1/models")
    assert stand_in.heads[1].startswith("GET /prefix/v1/models HTTP/1.1\r\n")
    assert "Authorization: Bearer secret\r\n" in stand_in.heads[1]
    assert "Authorization" not in stand_in.heads[0]


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:y", "http://x?q", "http://x:99999"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        Server.at(url)


def test_without_a_key_that_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst\nsecond\n")
    path.chmod(0o600)
    monkeypatch.setenv("BATON_API_KEY_FILE", str(path))
    assert Server.at("http://127.0.0.1:1").key == "first"
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    assert Server.at("https://api.example").key == "mine"
    assert Server.at("https://api.example") == Server("api.example", 443, True, "", "mine")
