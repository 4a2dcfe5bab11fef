"""What `/workers` of a deployment tells: whether everything serves, and whether everything is at rest."""

from asyncio import sleep
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from loadtest.http_exchange import Broken, Server, get
from runtime.clock import Clock

REST_S = 60.0
LOOK_S = 0.2


class Fleet:
    """The workers of one deployment. `learn` notes how many there are when all serve."""

    def __init__(self, server: Server, clock: Clock) -> None:
        self._server, self._clock = server, clock
        self._complete: Counter[str] = Counter()  # workers by role, ranks each

    async def learn(self) -> None:
        """All serve now."""
        self._complete = by_role(await self.rows())

    async def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows of /workers; none if nothing answers."""
        try:
            status, body = await get(self._server, self._clock, "/workers", timeout_s=5.0)
        except Broken:
            return []
        rows: list[dict[str, Any]] = orjson.loads(body) if status == 200 else []
        return rows

    async def answers(self, within_s: float) -> bool:
        """Whether the gateway comes to answer."""
        for _ in range(int(within_s / LOOK_S)):
            try:
                await get(self._server, self._clock, "/health", timeout_s=5.0)
            except Broken:
                await sleep(LOOK_S)
            else:
                return True
        return False

    async def recovers(self, gone: int | None, since: float, within_s: float) -> bool:
        """Whether all roles are complete again in time, without the process `gone`, and each worker has beaten since
        `since`: one that stood still may not have been missed yet."""
        return bool(await self._rows_once(lambda row: row["pid"] != gone, since, within_s))

    async def rows_at_rest(self) -> Sequence[Mapping[str, Any]]:
        """The rows of /workers when all have said, after this call, that they hold nothing. None: they did not."""
        return await self._rows_once(_is_at_rest, self._clock.now(), REST_S)

    async def _rows_once(
        self, holds: Callable[[Mapping[str, Any]], bool], since: float, within_s: float
    ) -> Sequence[Mapping[str, Any]]:
        """The rows of /workers once all roles are complete and each worker has said, after `since`, what holds. None:
        they did not in time."""
        until = self._clock.now() + within_s
        while (asked := self._clock.now()) <= until:
            rows = await self.rows()
            all_hold = all(asked - row["heartbeat_age_s"] > since and holds(row) for row in rows)
            if all_hold and by_role(rows) == self._complete:
                return rows
            await sleep(LOOK_S)
        return []


def by_role(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How many workers there are of each role."""
    return Counter(row["role"] for row in rows)


def _is_at_rest(row: Mapping[str, Any]) -> bool:
    """Whether a worker holds nothing, on its device and in host memory, but what it has cached."""
    return row["running"] == row["waiting"] == 0 and all(map(_holds_nothing, (row["kv_pages"], row["host_pages"])))


def _holds_nothing(pages: Mapping[str, int]) -> bool:
    held = [pages[name] for name in ("owned", "reserved", "quarantined")]
    return pages["free"] + pages["cached"] == pages["total"] and not any(held)
