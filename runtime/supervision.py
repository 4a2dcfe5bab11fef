"""What the launcher of `baton serve` tells its gateway of the workers that it keeps alive, and the words for it.

    launcher --JSON lines, on the standard input of the gateway--> Presence (gateway/routing/presence.py)

One line for each unit whose state has changed, and for all units when a gateway has started. The console, /health and
the metrics say the same, because all of them read these facts. Pure.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from protocol.messages_gateway import Role

UnitState = Literal["starting", "running", "backing off", "given up", "left"]
STATES: Final[tuple[UnitState, ...]] = get_args(UnitState)
MAX_LINE_BYTES: Final = 4096  # the most that a pipe writes in one piece


@dataclass(frozen=True)
class UnitNews:
    """The state of a unit: a worker, or a group of ranks. Times are of the clock that the processes of a host share.
    `max_restarts`: None if there is no limit."""

    unit: str
    role: Role
    state: UnitState
    since: float
    start_at: float = 0.0  # when it is started again, if it is backing off
    failures: int = 0  # in a row
    max_restarts: int | None = None

    def to_line(self) -> bytes:
        """As one line of JSON."""
        return _NEWS.dump_json(self) + b"\n"

    @staticmethod
    def from_line(line: bytes) -> "UnitNews | None":
        """The news, or None if the line holds none."""
        try:
            return _NEWS.validate_json(line)
        except ValidationError:
            return None


_NEWS: Final = TypeAdapter(UnitNews)


def describe_unit(news: UnitNews, who: str, now: float) -> str:
    """What happens to a unit, in one sentence about `who`."""
    if news.state == "given up":
        if not news.max_restarts:
            return f"{who} is not started again (--max-restarts 0)"
        return f"{who} is given up after {news.max_restarts} restart{'s' * (news.max_restarts > 1)} in a row"
    if news.state == "backing off":
        wait_s = round(news.start_at - now, 1)
        if wait_s <= 0:
            return f"{who} is started again at once"
        of_how_many = "" if news.max_restarts is None else f" of {news.max_restarts}"
        return f"{who} is started again in {wait_s:g} s, restart {news.failures}{of_how_many} in a row"
    if news.state == "starting":
        return f"{who} has been starting for {now - news.since:.0f} s"
    return f"{who} {'has left' if news.state == 'left' else 'runs'}"
