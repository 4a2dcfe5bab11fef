"""`python -m tests.fuzz.served.client URL SEED`: a client of its own process, so that what it judges delays no stream.

It reads one order a line, asks one request after another, and writes a line for each, then {"done": true}.
"""

import json
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, Final

import httpx

from runtime.clock import MonotonicClock
from tests.fuzz.served.asks import Ask, ask
from tests.fuzz.served.judge import Got, Verdict, joined, verdict, whole

PATIENCE_S: Final = 180.0  # for a whole answer, and between two pieces of it
JUDGED_S: Final = 10.0  # for one verdict: a pattern may take Python forever
MAX_WHY: Final = 600  # characters
PATH: Final = "/v1/chat/completions"
JSON: Final = {"content-type": "application/json"}


@dataclass(frozen=True)
class Order:
    """What to ask: the numbers from `first` on, each `step`-th, until that moment, and at most so many. `is_calm`:
    without their grammars."""

    first: int
    step: int
    until: float
    most: int
    is_calm: bool
    mark: str = ""


@dataclass(frozen=True)
class Done:
    """What became of one request, and when it was in flight."""

    number: int
    family: str
    kind: str
    why: str
    is_finding: bool
    began: float
    ended: float


class TooLong(Exception):
    """A verdict takes too long."""


def asked(client: httpx.Client, wanted: Ask) -> Verdict:
    """Sends a body, and judges the answer."""
    try:
        got = _got(client, wanted.raw)
    except httpx.TimeoutException as error:
        return Verdict("hangs", type(error).__name__, is_finding=True)
    except httpx.HTTPError as error:
        return Verdict("connection cut", f"{type(error).__name__}: {error}", is_finding=True)
    signal.setitimer(signal.ITIMER_REAL, JUDGED_S)
    try:
        return verdict(wanted, got)
    except (TooLong, RecursionError) as error:
        return Verdict("not judged", f"{type(error).__name__}: {error}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _got(client: httpx.Client, raw: bytes) -> Got:
    with client.stream("POST", PATH, content=raw, headers=JSON) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return joined(_events(answer))
        text = answer.read()
    try:
        return whole(answer.status_code, json.loads(text))
    except ValueError:
        return Got(answer.status_code, text[:300].decode(errors="replace"))


def _events(answer: httpx.Response) -> Iterator[Any]:
    rest = b""
    for piece in answer.iter_bytes():  # httpx would end lines at U+2028, too
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                yield json.loads(line.removeprefix(b"data: "))


def followed(client: httpx.Client, seed: int, order: Order) -> Iterator[Done]:
    """What became of each request of an order."""
    clock = MonotonicClock()
    for place in range(order.most):
        if clock.now() >= order.until:
            return
        wanted = ask(seed, order.first + place * order.step, order.mark)
        if order.is_calm:
            wanted = Ask(wanted.number, "calm", "", wanted.calm())
        began = clock.now()
        found = asked(client, wanted)
        why = found.why[:MAX_WHY]
        yield Done(wanted.number, wanted.family, found.kind, why, found.is_finding, began, clock.now())


def main() -> None:
    """Follows orders until there are no more."""
    signal.signal(signal.SIGALRM, _stop)
    warnings.simplefilter("ignore", FutureWarning)  # Python's, of a pattern that it may read in another way one day
    url, seed = sys.argv[1], int(sys.argv[2])
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        for line in sys.stdin:
            for done in followed(client, seed, Order(**json.loads(line))):
                _say(asdict(done))
            _say({"done": True})


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooLong(f"after {JUDGED_S:g} s")


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
