"""How long a stream stands still while others send hostile requests: real processes, over HTTP.

One client reads a stream and notes when each piece comes. Meanwhile another sends one request after another; each fails
with its sentence, or is answered. Before each comes the same request without what makes it hostile.
"""

import json
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

import httpx

from bench.grammar.hostile import Fields, hostile, large_answers
from runtime.clock import Clock, MonotonicClock
from tests.e2e.baton_process import PATIENCE_S, BatonProcess

BOUND_MS: Final = 250  # the longest gap that is wanted, unless twice the calm one is longer
HOSTILE: Final = frozenset(
    "guided_json guided_grammar guided_choice regex ebnf prompt_logprobs logprobs top_logprobs".split()
)
_BODY: Final = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0}
_FLAGS: Final = "serve --port 0 --dtype float32"


@dataclass(eq=False)
class Stream:
    """A neighbour: streams that follow one another, and when each piece came, by the number of its stream."""

    url: str
    clock: Clock = field(default_factory=MonotonicClock)

    def __post_init__(self) -> None:
        self.pieces: list[tuple[float, int]] = []
        self._is_over = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        body = {**_BODY, "stream": True, "ignore_eos": True, "max_tokens": 1500}
        with httpx.Client(timeout=PATIENCE_S) as client:
            for number in count():
                with client.stream("POST", f"{self.url}/v1/chat/completions", json=body) as answer:
                    for line in answer.iter_lines():
                        if self._is_over:
                            return
                        if line.startswith("data: "):
                            with self._news:
                                self.pieces.append((self.clock.now(), number))
                                self._news.notify_all()

    @contextmanager
    def running(self) -> "Iterator[Stream]":
        """Reads until the end of the block, which begins with the first piece."""
        self._thread.start()
        try:
            self.wait()
            yield self
        finally:
            self._is_over = True
            self._thread.join()

    def wait(self) -> None:
        """Until another piece has come."""
        with self._news:
            seen = len(self.pieces)
            assert self._news.wait_for(lambda: len(self.pieces) > seen, PATIENCE_S), "the stream has ended"

    def longest_gap(self, start: float, end: float) -> float:
        """The longest time between two pieces of a stream, of which a part lies in [start, end), in seconds."""
        before, after = self.worst(start, end)
        return after - before

    def worst(self, start: float, end: float) -> tuple[float, float]:
        """The moments of the two pieces with that gap; (start, start) if there are none."""
        with self._news:
            gaps = [
                (before, after)
                for (before, one), (after, other) in pairwise(self.pieces)
                if one == other and after >= start and before < end
            ]
        return max(gaps, default=(start, start), key=lambda gap: gap[1] - gap[0])

    def forget(self) -> None:
        """Forgets all pieces but the last one."""
        with self._news:
            del self.pieces[:-1]


def measure(rounds: int, flags: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A row for each hostile request: milliseconds, the worst of the rounds; beside the same load without it."""
    asked = [
        (name, is_hostile, fields if is_hostile else calm(fields))
        for turn in range(rounds)
        for name, fields in (hostile(turn) | large_answers(turn)).items()
        for is_hostile in (False, True)
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        BatonProcess(*_FLAGS.split(), *flags, log=Path(folder) / "log") as baton,
        Stream(baton.url).running() as stream,
        httpx.Client(base_url=baton.url, timeout=PATIENCE_S) as client,
    ):
        found = [(name, is_hostile, *_ask(client, stream, fields)) for name, is_hostile, fields in asked]

    rows = []
    for name in dict.fromkeys(name for name, *_ in asked):
        mine = [each[2:] for each in found if each[0] == name and each[1]]
        beside = [each[4] for each in found if each[0] == name and not each[1]]
        rows.append(row(name, mine, beside))
    return rows


def calm(fields: Fields) -> Fields:
    """The same request without what makes it hostile."""
    return {name: value for name, value in fields.items() if name not in HOSTILE}


def row(name: str, found: Sequence[tuple[int, float, float]], calm_gaps: Sequence[float]) -> dict[str, Any]:
    """A line of the table. `found`: (status, seconds until the answer, longest gap in seconds) of each round."""
    gap, beside = max(gap for _, _, gap in found) * 1e3, max(calm_gaps) * 1e3
    return {
        "request": name,
        "status": found[0][0],
        "answer ms": round(max(took for _, took, _ in found) * 1e3),
        "longest gap ms": round(gap),
        "without it ms": round(beside),
        "within": "yes" if gap <= max(BOUND_MS, 2 * beside) else "NO",
    }


def _ask(client: httpx.Client, stream: Stream, fields: Fields) -> tuple[int, float, float]:
    """(status, seconds until the answer, the neighbour's longest gap meanwhile, in seconds)."""
    content = json.dumps({**_BODY, "max_tokens": 8, **fields})  # outside of what is timed
    start = stream.clock.now()
    answer = client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    end = stream.clock.now()
    assert answer.status_code in (200, 400), answer.text[:500]

    stream.wait()  # the gap in which the answer came ends with the next piece
    return answer.status_code, end - start, stream.longest_gap(start, end)
