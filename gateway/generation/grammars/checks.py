"""The grammars that a gateway has had tried: each text, or why no answer can follow it. It remembers some hundreds.

    text_of --new--> trial process --text, or a refusal--> remembered
       '----known-----------------------------------------^

A grammar that has ended workers is remembered as bad, too, for a while.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from gateway.generation.grammars.refused import GrammarRefused, place_of
from gateway.generation.turns import Turns
from gateway.words.request import Grammar
from protocol.errors import Overloaded
from protocol.grammar import grammar_name
from runtime.clock import Clock

MAX_REMEMBERED: Final = 256  # grammars that were found good or bad
MAX_REMEMBERED_CHARS: Final = 8 * 1024 * 1024  # of their texts
MAX_WAIT_S: Final = 30.0  # for the grammars of others
MAX_BAD: Final = 256  # grammars that have ended workers; of more, those that did so first are forgotten
BAD_S: Final = 600.0  # for which a grammar is refused that has ended workers
Check = Callable[[Grammar], str | GrammarRefused]


@dataclass(eq=False)
class GrammarChecks:
    """Of one gateway. `check` tries one grammar at a time, in a thread: other requests and streams go on.
    `prepare` makes ready for the next one, whatever the last one has done."""

    check: Check
    clock: Clock
    prepare: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._known: OrderedDict[bytes, str | GrammarRefused] = OrderedDict()  # by the digest of what is asked for
        self._num_chars = 0  # of these
        self._bad: dict[str, float] = {}  # grammars that have ended workers, by name: until when they are refused
        self._turns = Turns()
        self._trial: asyncio.Task[None] | None = None  # the last one that has begun
        self._thread = ThreadPoolExecutor(1, "grammar trials")

    async def text_of(self, wanted: Grammar | None, client: str = "") -> str:
        """The text of the grammar that a request of `client` asks for; "" if it asks for none. GrammarRefused if it
        cannot be followed, Overloaded if those of others take too long. Clients take turns with new grammars."""
        if wanted is None:
            return ""
        digest = await asyncio.to_thread(lambda: sha256(wanted.key.encode()).digest())
        if digest not in self._known:
            async with AsyncExitStack() as turn:
                await turn.enter_async_context(self._turn(client))
                if digest not in self._known:
                    self._trial = asyncio.create_task(self._try(digest, wanted, turn.pop_all()))
                    await asyncio.shield(self._trial)
        known = self._known[digest]
        self._known.move_to_end(digest)
        if isinstance(known, GrammarRefused):
            raise known.anew()
        if self._is_bad(known):
            what = "workers have ended while they followed this grammar, so it is not followed"
            raise GrammarRefused(what, place_of(wanted))
        return known

    def blame(self, name: str) -> None:
        """Workers have ended while they followed the grammar of this name. It is refused for BAD_S."""
        now = self.clock.now()
        others = [(other, until) for other, until in self._bad.items() if until > now and other != name]
        self._bad = dict(others[-(MAX_BAD - 1) :]) | {name: now + BAD_S}

    def warm_up(self) -> None:
        """Has the thread prepare for the next trial."""
        self._thread.submit(self.prepare)

    def close(self, last: Callable[[], None]) -> None:
        """Ends the thread, with `last` as its last work."""
        self._thread.submit(last)
        self._thread.shutdown()

    def _is_bad(self, text: str) -> bool:
        return bool(self._bad) and self._bad.get(grammar_name(text), 0.0) > self.clock.now()

    async def _try(self, digest: bytes, wanted: Grammar, turn: AsyncExitStack) -> None:
        """Has a grammar tried, and remembers what was found. It goes on when its client has left: then the client's
        next request finds the answer."""
        async with turn:
            trying = asyncio.get_running_loop().run_in_executor(self._thread, self.check, wanted)
            self.warm_up()
            self._remember(digest, await trying)

    @asynccontextmanager
    async def _turn(self, client: str) -> AsyncIterator[None]:
        """Waits for the grammars of others."""
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(MAX_WAIT_S):
                    await stack.enter_async_context(self._turns.one(client))
            except TimeoutError:
                raise Overloaded(f"new grammars have been tried for {MAX_WAIT_S:g} s; try again") from None
            yield

    def _remember(self, digest: bytes, outcome: str | GrammarRefused) -> None:
        """Remembers what was found. Beyond the bounds, what was asked for longest ago is forgotten."""
        self._known[digest] = outcome
        self._num_chars += _num_chars(outcome)
        while len(self._known) > MAX_REMEMBERED or self._num_chars > MAX_REMEMBERED_CHARS:
            self._num_chars -= _num_chars(self._known.popitem(last=False)[1])


def _num_chars(outcome: str | GrammarRefused) -> int:
    return len(outcome if isinstance(outcome, str) else outcome.what)
