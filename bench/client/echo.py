"""`python -m bench.client.echo PORT`: an endpoint that answers by a fixed schedule, and computes nothing.

    request is whole --ttft_s--> token 1 --itl_s--> token 2 --itl_s--> ... usage, [DONE]

Tokens are 17. Streams that are due in the same millisecond are written one after the other. GET /metrics tells how many
events were written, and how late they were.
"""

import argparse
import asyncio
import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools
import orjson
import uvloop

from runtime.clock import Clock, MonotonicClock

TICK_S = 0.001
TOKEN_ID = 17
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"
_TOKEN = (
    b'data: {"id":"echo","object":"text_completion","created":0,"model":"echo",'
    b'"choices":[{"index":0,"text":" word","token_ids":[17],"finish_reason":null}]}\n\n'
)


@dataclass(frozen=True)
class Schedule:
    """When the tokens of an answer are written, in seconds from the request's last byte."""

    ttft_s: float
    itl_s: float


@dataclass
class Written:
    """What the server has done so far. `late_s` has one entry for each tick that wrote anything."""

    num_events: int = 0
    late_s: "array[float]" = field(default_factory=lambda: array("d"))

    def page(self) -> bytes:
        """As /metrics."""
        ordered = sorted(self.late_s) or [0.0]
        late = ordered[int(0.99 * (len(ordered) - 1))]
        return b"echo_events_total %d\necho_late_p99_seconds %f\n" % (self.num_events, late)


def chunked(piece: bytes) -> bytes:
    """A chunk of a body."""
    return b"%x\r\n%s\r\n" % (len(piece), piece)


TOKEN_CHUNK = chunked(_TOKEN)


def last_chunks(num_prompt: int, num_tokens: int) -> bytes:
    """Usage, [DONE], and the end of the body."""
    usage = {"prompt_tokens": num_prompt, "completion_tokens": num_tokens, "total_tokens": num_prompt + num_tokens}
    last = {"id": "echo", "object": "text_completion", "created": 0, "model": "echo", "choices": [], "usage": usage}
    event = b"data: " + orjson.dumps(last) + b"\n\ndata: [DONE]\n\n"
    return chunked(event) + chunked(b"")


class Wheel:
    """Calls what is due, a millisecond at a time: thousands of streams need one timer."""

    def __init__(self, clock: Clock, written: Written) -> None:
        self._clock = clock
        self._written = written
        self._due: dict[int, list[Callable[[], None]]] = {}
        self._tick = 0

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Has `call` called in the tick that `when` is in."""
        self._due.setdefault(max(self._tick, int(when / TICK_S)), []).append(call)

    async def run(self) -> None:
        """Until it is cancelled."""
        self._tick = int(self._clock.now() / TICK_S)
        while True:
            now = self._clock.now()
            while self._tick * TICK_S <= now:
                calls = self._due.pop(self._tick, ())
                if calls:
                    self._written.late_s.append(now - self._tick * TICK_S)
                self._tick += 1
                for call in calls:
                    call()
            await asyncio.sleep(TICK_S)


class Echo(asyncio.Protocol):
    """One connection: request after request."""

    def __init__(self, schedule: Schedule, wheel: Wheel, clock: Clock, written: Written) -> None:
        self._schedule, self._wheel, self._clock, self._written = schedule, wheel, clock, written
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._path, self._body = b"", b""
        self._left = self._num_tokens = self._num_prompt = 0
        self._due_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    # ---- called by the parser ----

    def on_url(self, url: bytes) -> None:
        self._path, self._body = url, b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self._transport is not None
        if self._path.endswith(b"/models"):
            self._answer(b'{"data": [{"id": "echo", "max_model_len": 1000000}]}', b"application/json")
        elif self._path.endswith(b"/metrics"):
            self._answer(self._written.page(), b"text/plain")
        else:
            asked = orjson.loads(self._body)
            self._num_tokens = self._left = int(asked.get("max_tokens") or asked["max_completion_tokens"])
            self._num_prompt = len(asked.get("prompt") or asked.get("messages"))
            self._transport.write(_HEAD % b"text/event-stream")
            self._due_s = self._clock.now() + self._schedule.ttft_s
            self._wheel.at(self._due_s, self._say)

    def _answer(self, body: bytes, kind: bytes) -> None:
        assert self._transport is not None
        self._transport.write(_HEAD % kind + chunked(body) + chunked(b""))

    def _say(self) -> None:
        if self._transport is None:  # the client has left
            return
        self._left -= 1
        self._written.num_events += 1
        if self._left:
            self._transport.write(TOKEN_CHUNK)
            self._due_s += self._schedule.itl_s
            self._wheel.at(self._due_s, self._say)
        else:
            self._transport.write(TOKEN_CHUNK + last_chunks(self._num_prompt, self._num_tokens))


async def serve(schedule: Schedule, port: int, clock: Clock, ready: Callable[[int], None]) -> None:
    """Serves until it is cancelled. `ready` gets the port."""
    written = Written()
    wheel = Wheel(clock, written)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Echo(schedule, wheel, clock, written), "127.0.0.1", port, backlog=8192)
    async with server:
        ready(server.sockets[0].getsockname()[1])
        await wheel.run()


def main() -> None:
    """Prints `Ready: echo at URL` once it listens."""
    parser = argparse.ArgumentParser(prog="python -m bench.client.echo", description="Answers by a fixed schedule.")
    parser.add_argument("port", type=int, nargs="?", default=0)
    parser.add_argument("--ttft-ms", type=float, default=100.0)
    parser.add_argument("--itl-ms", type=float, default=20.0)
    parser.add_argument("--core", type=int, help="the only core that it may use")
    asked = parser.parse_args()
    if asked.core is not None:
        os.sched_setaffinity(0, {asked.core})

    schedule = Schedule(asked.ttft_ms / 1e3, asked.itl_ms / 1e3)

    def ready(port: int) -> None:
        print(f"Ready: echo at http://127.0.0.1:{port}", flush=True)

    uvloop.run(serve(schedule, asked.port, MonotonicClock(), ready))


if __name__ == "__main__":
    main()
