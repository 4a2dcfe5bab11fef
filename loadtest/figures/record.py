"""One request as its client saw it. Times are seconds of the run. An answer that has not begun has no arrivals."""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum


class Ending(StrEnum):
    """How a request ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"  # its client left on purpose
    UNFINISHED = "unfinished"  # the run was over


class Counting(StrEnum):
    """What says how many tokens each event had."""

    IDS = "token ids"
    CONTINUOUS = "continuous usage"
    TOKENIZER = "the tokenizer"
    USAGE = "usage at the end, as many tokens as events"
    CHUNKS = "chunks"  # nothing does


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """`arrivals[i]` is when event i came, `counts[i]` how many tokens it had. `kind` groups errors."""

    conversation: int
    turn: int
    due_s: float
    sent_s: float
    end_s: float
    arrivals: "array[float]" = field(default_factory=lambda: array("d"))
    counts: "array[int]" = field(default_factory=lambda: array("l"))
    counting: Counting = Counting.CHUNKS
    ending: Ending = Ending.DONE
    kind: str = ""
    error: str = ""
    num_prompt: int | None = None
    num_cached: int | None = None
    num_said: int | None = None  # tokens of the answer, as usage tells
    answer: int = 0  # a hash of all that was answered

    @property
    def is_done(self) -> bool:
        """Whether its answer ended as it should."""
        return self.ending is Ending.DONE

    @property
    def num_tokens(self) -> int:
        """Tokens that arrived; events if nothing counts tokens."""
        return sum(self.counts)

    @property
    def ttft_s(self) -> float | None:
        """Sent until the first token."""
        return self.arrivals[0] - self.sent_s if self.arrivals else None

    @property
    def e2e_s(self) -> float | None:
        """Sent until the last token."""
        return self.arrivals[-1] - self.sent_s if self.arrivals else None

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first event. None for answers of one token, or of one event."""
        later = self.num_tokens - 1
        return (self.arrivals[-1] - self.arrivals[0]) / later if later > 0 and len(self.arrivals) > 1 else None

    @property
    def gap_s(self) -> float | None:
        """The longest time between two events."""
        return max(
            (later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)), default=None
        )

    @property
    def held_s(self) -> float:
        """How long it waited here for a free place."""
        return self.sent_s - self.due_s
