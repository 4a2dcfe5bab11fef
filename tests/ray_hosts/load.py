"""Clients that ask for known tokens, one stream after the other, and what became of each stream."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from bench.soak.work import body_of, judge
from loadtest.http_exchange import Server
from loadtest.verify.answers import Answer, Ask, Heard
from loadtest.verify.asking import hear
from loadtest.verify.judge import Verdict
from runtime.clock import MonotonicClock

REQUEST_S = 240.0  # an answer without an end by then is lost
_PAUSE_S = 1.0  # of a client between two streams: the load is light
_PROMPTS = tuple(tuple(range(10 + 7 * client, 40 + 9 * client)) for client in range(12))


def known_asks() -> list[Ask]:
    """A request for each client: greedy, 32 to 87 prompt tokens, 96 new ones."""
    return [Ask(prompt, 96, 1, 0.0, 0, ignore_eos=True) for prompt in _PROMPTS]


@dataclass
class Tally:
    """What became of the streams that began since `mark`."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)


class Clients:
    """Twelve clients in a thread of their own. `url` is where they ask, which may change."""

    def __init__(self, url: Callable[[], str]) -> None:
        self.tally = Tally()
        self.gateway_is_hit = False
        self._url = url
        self._clock = MonotonicClock()
        self._known: dict[Ask, Answer] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._over = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []

    def learn(self) -> None:
        """Learns the answers, one after the other, and checks that they are the same all at once."""
        asked = known_asks()
        for ask in asked:
            heard = self._wait(self._one(ask))
            assert heard.done and heard.status == 200, heard
            self._known[ask] = heard.answer()

        async def together() -> list[Heard]:
            return await asyncio.gather(*(self._one(ask) for ask in asked))

        for ask, heard in zip(asked, self._wait(together()), strict=True):
            assert heard.answer() == self._known[ask], f"not reproducible: {heard}"

    def start(self) -> None:
        """Begins to ask."""

        async def begin() -> None:
            self._running = [asyncio.create_task(self._client(ask)) for ask in self._known]

        self._wait(begin())

    def mark(self) -> Tally:
        """What was counted so far. Counts anew."""
        done, self.tally = self.tally, Tally()
        return done

    def close(self) -> None:
        """Lets the streams that run end, then ends the thread."""

        async def end() -> None:
            self._over.set()
            await asyncio.gather(*self._running)

        try:
            self._wait(end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _client(self, ask: Ask) -> None:
        while not self._over.is_set():
            was_hit = self.gateway_is_hit
            heard = await self._one(ask)
            verdict, told = judge(heard, self._known[ask], was_hit or self.gateway_is_hit)
            self.tally.verdicts[verdict] += 1
            if verdict is Verdict.ERROR:
                self.tally.codes[heard.error["code"]] += 1
            if told:
                self.tally.told.append(f"{verdict}: {told[:400]}")
            await asyncio.sleep(_PAUSE_S)

    async def _one(self, ask: Ask) -> Heard:
        server = Server.at(self._url(), "")
        return await hear(server, self._clock, body_of(ask, stream=True), stream=True, timeout_s=REQUEST_S)
