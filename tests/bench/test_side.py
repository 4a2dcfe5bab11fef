"""What is read of a stream, and of what a server counts."""

import asyncio
from collections.abc import Callable

import pytest

from bench.side import Side, answer_of, run_jobs
from tests.doubles.clock import VirtualClock
from tests.loadtest.openai_stand_in import listening

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":%b}}'
TOKEN = b'data: {"choices":[{"token_ids":[%b]}]}'
TIMELINE = b'data: {"choices":[],"timeline":[{"name":"first token","at_ms":3.5}]}'
DONE = (4.0, b"data: [DONE]")


@pytest.mark.parametrize("details, cached", [(b'{"cached_tokens":4}', 4), (b"null", 0), (b"{}", 0)])
def test_an_answer_has_its_tokens_and_its_cached_ones(details: bytes, cached: int) -> None:
    lines = [
        (1.0, TOKEN % b""),
        (1.0, TIMELINE),
        (2.0, TOKEN % b"5"),
        (3.5, TOKEN % b"6"),
        (4.0, b""),
        (4.0, USAGE % details),
        DONE,
    ]
    answer = answer_of(0.5, lines)
    assert (answer.arrivals, answer.num_computed) == ((1.5, 3.0), 9 - cached)
    assert answer.moments == {"first token": 3.5}


def test_an_answer_of_a_chat_has_its_deltas() -> None:
    chat = [b'data: {"choices":[{"delta":{"role":"assistant","content":"a"}}]}', b'data: {"choices":[{"delta":{}}]}']
    answer = answer_of(0.5, [(1.0, chat[0]), (2.0, chat[1]), (3.0, USAGE % b"null"), DONE])
    assert (answer.arrivals, answer.deltas) == ((0.5, 1.5), [{"role": "assistant", "content": "a"}, {}])


@pytest.mark.parametrize("line", [b'data: {"error":{"message":"full"}}', TOKEN % b"5"])
def test_a_stream_that_ends_early_is_an_error(line: bytes) -> None:
    with pytest.raises(RuntimeError, match="a stream ended"):
        answer_of(0.0, [(1.0, TOKEN % b"4"), (2.0, line)])


async def test_a_total_is_read_when_each_worker_has_told_it_after_the_call() -> None:
    clock, asked = VirtualClock(), list[str]()
    ages = iter([(0.1, 0.1), (0.5, 1.5), (0.5, 2.5), (2.5, 2.5)])  # at seconds 0, 1, 2 and 3

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
        if asked[-1] == "/workers":
            body = b"[%b]" % b",".join(b'{"heartbeat_age_s":%.1f}' % age for age in next(ages))
        else:
            body = b'moved{role="decode",of="1"} 7.0\nmoved{role="prefill"} 9.0\nmoved{role="decode",of="2"} 5.0'
        clock.advance(1.0)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with listening(answer) as server:
        assert await Side("pair", server, "story", clock).total("moved", role="decode") == 12
    assert asked == ["/workers"] * 4 + ["/metrics"]


async def test_so_many_run_at_a_time_and_results_keep_their_order() -> None:
    running, most = 0, 0

    def job(index: int) -> Callable[[], "asyncio.Future[int]"]:
        async def run() -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(5 - index % 3):
                await asyncio.sleep(0)
            running -= 1
            return index

        return lambda: asyncio.ensure_future(run())

    assert await run_jobs([job(index) for index in range(10)], 3) == list(range(10))
    assert most == 3
