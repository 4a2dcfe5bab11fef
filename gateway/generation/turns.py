"""How requests wait for work of which one piece is done at a time: clients take turns, and one may leave."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """One piece of work at a time. The clients take turns, whatever number of requests each has waiting."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by client; the next one first
        self._is_taken = False

    @asynccontextmanager
    async def one(self, client: str) -> AsyncIterator[None]:
        """Waits for a turn of this client, which lasts as long as the block."""
        await self._take(client)
        try:
            yield
        finally:
            self._pass_on()

    async def _take(self, client: str) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(client, turn)
            else:  # it has got the turn in the same moment
                self._pass_on()
            raise

    def _leave(self, client: str, turn: "asyncio.Future[None]") -> None:
        line = self._lines.get(client, deque())
        if turn in line:
            line.remove(turn)
        if not line:
            self._lines.pop(client, None)

    def _pass_on(self) -> None:
        while self._lines:
            client, line = self._lines.popitem(last=False)
            turn = line.popleft()
            if line:
                self._lines[client] = line
            if not turn.done():  # else its request is cancelled in this moment
                turn.set_result(None)
                return
        self._is_taken = False
