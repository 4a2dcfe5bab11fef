"""One request: its times, a client that leaves, a server that is late, a page that is no answer."""

from collections.abc import Iterator
from typing import Any

from loadtest.verify.asking import hear
from runtime.clock import MonotonicClock
from tests.loadtest.openai_stand_in import StandIn, standing_in

BODY = b'{"stream": true}'
TOKEN = b'data: {"choices": [{"index": 0, "text": "x", "token_ids": [7], "finish_reason": null}]}\n\n'


async def test_a_late_answer_is_late() -> None:
    async with standing_in(StandIn(lambda _: [TOKEN, TOKEN], pause_s=600.0)) as server:
        heard = await hear(server, MonotonicClock(), BODY, stream=True, timeout_s=0.05)
        left = await hear(server, MonotonicClock(), BODY, stream=True, timeout_s=600.0, leave_after_s=0.05)
    assert heard.is_late and not heard.left and heard.broken.startswith("no end within 0.05 s")
    assert left.left and not left.is_late


async def test_a_client_that_leaves_has_its_tokens() -> None:
    def endless(_: dict[str, Any]) -> Iterator[bytes]:
        while True:
            yield TOKEN

    stand_in = StandIn(endless, pause_s=0.001)
    async with standing_in(stand_in) as server:
        heard = await hear(server, MonotonicClock(), BODY, stream=True, timeout_s=30.0, leave_after=3)
        await stand_in.left.get()
    assert heard.left and heard.num_tokens == 3 and heard.first_s is not None and heard.first_s <= heard.took_s


async def test_a_page_with_a_status_is_an_error() -> None:
    page = b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with standing_in(StandIn(lambda _: [b"<html>busy</html>"], page)) as server:
        heard = await hear(server, MonotonicClock(), BODY, stream=True, timeout_s=30.0)
    assert heard.status == 502 and "busy" in str(heard.error) and not heard.malformed and not heard.done
