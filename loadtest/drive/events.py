"""The events of one streamed answer: when tokens came, how many, what they were, and how the answer ended.

Called for each line of each stream, so it does nothing that can wait until the run is over.
"""

from array import array
from typing import Any

import orjson
import xxhash

from loadtest.figures.record import Counting, Ending


class Heard:
    """What has come so far. Times are seconds of the clock, less `start`.

    `keeps`: texts and token ids are kept, for the next turn, the tokenizer or the comparison with a first pass.
    """

    __slots__ = (
        "arrivals", "cancel_after", "counts", "ending", "error", "ids", "is_over", "keeps", "kind", "num_cached",
        "num_events", "num_prompt", "num_said", "others", "saw_ids", "saw_usage", "start", "texts", "tokens_so_far",
    )  # fmt: skip

    def __init__(self, start: float, keeps: bool = False, cancel_after: int | None = None) -> None:
        self.start, self.keeps, self.cancel_after = start, keeps, cancel_after
        self.arrivals, self.counts = array("d"), array("l")
        self.texts: list[str] = []
        self.ids: list[int] = []
        self.others: list[bytes] = []  # lines that are no events, such as the body of an error
        self.num_prompt: int | None = None
        self.num_cached: int | None = None
        self.num_said: int | None = None
        self.tokens_so_far = self.num_events = 0
        self.saw_ids = self.saw_usage = self.is_over = False
        self.ending, self.kind, self.error = Ending.DONE, "", ""

    def line(self, now: float, line: bytes) -> bool:
        """Takes a line. False when the client leaves."""
        if not line.startswith(b"data:"):
            if line.strip() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                self.others.append(line)
            return True
        self.num_events += 1
        try:
            event = orjson.loads(line[5:])
        except orjson.JSONDecodeError:
            if line[5:].strip() == b"[DONE]":
                self.is_over = True
            else:
                self.fail("not JSON", line[:200])
            return True

        if isinstance(event, dict):
            return self._event(now, event)
        self.fail("not an event", line[:200])
        return True

    def fail(self, kind: str, error: object) -> None:
        """The answer is of no use. The first failure counts."""
        if self.ending is Ending.DONE:
            self.ending, self.kind, self.error = Ending.FAILED, kind, str(error)[:300]

    def _event(self, now: float, event: dict[str, Any]) -> bool:
        usage = event.get("usage")
        if choices := event.get("choices"):
            choice = choices[0]
            text = choice.get("text")
            if text is None:
                delta = choice.get("delta") or {}
                text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
            if count := self._count(choice.get("token_ids"), usage, text):
                self.arrivals.append(now - self.start)
                self.counts.append(count)
                self.tokens_so_far += count
            if self.keeps and text:
                self.texts.append(text)
        elif failure := event.get("error"):
            self.fail("error in the stream", failure.get("message") if isinstance(failure, dict) else failure)

        if usage:
            self._usage(usage)
        if self.cancel_after is not None and self.tokens_so_far >= self.cancel_after and self.ending is Ending.DONE:
            self.ending = Ending.CANCELLED
            return False
        return True

    def _count(self, ids: list[int] | None, usage: dict[str, Any] | None, text: str) -> int:
        """Tokens of an event; 1 if only its text is known, 0 for an event without any."""
        if ids is not None:
            self.saw_ids = self.saw_ids or bool(ids)
            if self.keeps:
                self.ids += ids
            return len(ids)
        if usage:
            self.saw_usage = True
            return max(0, int(usage.get("completion_tokens") or 0) - self.tokens_so_far)
        return 1 if text else 0

    def _usage(self, usage: dict[str, Any]) -> None:
        self.num_prompt = usage.get("prompt_tokens")
        self.num_said = usage.get("completion_tokens")
        details = usage.get("prompt_tokens_details") or {}
        self.num_cached = details.get("cached_tokens")

    @property
    def counting(self) -> Counting:
        """What the counts rest on."""
        if self.saw_ids:
            return Counting.IDS
        if self.saw_usage:
            return Counting.CONTINUOUS
        return Counting.USAGE if self.num_said == len(self.arrivals) else Counting.CHUNKS

    @property
    def answer(self) -> int:
        """A hash of the answer: of its token ids, else of its text. 0 if neither is kept."""
        if not self.keeps:
            return 0
        return xxhash.xxh3_64_intdigest(orjson.dumps(self.ids if self.saw_ids else "".join(self.texts)))
