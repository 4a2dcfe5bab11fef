"""What the routes of one gateway share: its parts, the names of its model, and how much it admits at a time."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gateway.choice_text import Detokenizer
from gateway.control import Control
from gateway.limits import Limits, merged
from gateway.metrics import Metrics
from gateway.tokenizer import TextTokenizer
from gateway.translate import Translator
from protocol.errors import Overloaded, UnknownModel
from runtime.clock import Clock
from runtime.settings import HttpLimits

BODIES = 16  # how many bodies of the greatest length may be held at a time
MAX_SHOWN = 200  # characters of a wrong name that an error shows


class Admission:
    """Decides whether a request is admitted: choices in flight are bounded, and so are the bytes not yet tokenised.
    Beyond a bound the client gets 429 with Retry-After. `num_in_flight` returns how many choices the workers have now.
    No locks: everything runs on the gateway's loop."""

    def __init__(self, max_choices: int, max_body_bytes: int, num_in_flight: Callable[[], int]) -> None:
        self._max_choices = max_choices
        self._max_bytes = BODIES * max_body_bytes
        self._num_in_flight = num_in_flight
        self._num_entering = 0  # choices of requests that are still being tokenised
        self.num_bytes = 0  # bytes being read, parsed or tokenised

    def check(self, num_choices: int = 1) -> None:
        """Raises Overloaded unless there is room for `num_choices`."""
        known = self._num_in_flight() + self._num_entering
        if known + num_choices > self._max_choices:
            raise Overloaded(
                f"{known} choices are in flight and this request has {num_choices}, "
                f"expected at most {self._max_choices} in all; try again"
            )

    @contextmanager
    def entering(self, num_choices: int) -> Iterator[None]:
        """Counts `num_choices` until the block ends; then the workers have them. Overloaded when they are too many."""
        self.check(num_choices)
        self._num_entering += num_choices
        try:
            yield
        finally:
            self._num_entering -= num_choices

    @contextmanager
    def reading(self) -> Iterator[Callable[[int], None]]:
        """Counts the bytes that the block reports, until the block ends. Overloaded when all bodies together are too
        long."""
        total = 0

        def read(num_bytes: int) -> None:
            nonlocal total
            total += num_bytes
            self.num_bytes += num_bytes
            if self.num_bytes > self._max_bytes:
                raise Overloaded(f"requests of more than {self._max_bytes} bytes are being read; try again")

        try:
            yield read
        finally:
            self.num_bytes -= total


@dataclass(frozen=True)
class ModelNames:
    """The names by which clients may ask for the one model. `served`: those that `/v1/models` lists. `folder`: the text
    of --model, accepted because clients of other servers send it, but not listed."""

    served: tuple[str, ...]
    folder: str | None = None

    @property
    def first(self) -> str:
        """The name in every answer and in the metrics, also when the request used another."""
        return self.served[0]

    def check(self, model: str | None) -> None:
        """UnknownModel unless `model` is one of the names, or None."""
        if model is None or model in self.served or (self.folder and model.rstrip("/") == self.folder.rstrip("/")):
            return
        names = " or ".join(repr(name) for name in self.served)
        verb = "is" if len(self.served) == 1 else "are"
        raise UnknownModel(
            f"model: got {model[:MAX_SHOWN]!r}, expected {names}, which {verb} served here", param="model"
        )


@dataclass(frozen=True)
class Service:
    """Everything that routes need."""

    names: ModelNames
    model: str  # the path of its folder
    texts: str  # the path of its tokenizer's folder
    control: Control
    translator: Translator
    tokenizer: TextTokenizer | None
    metrics: Metrics
    clock: Clock
    model_limits: Limits  # from the model folder and the settings; `limits` adds the workers'
    started_at: int  # seconds since 1970
    http_limits: HttpLimits
    admission: Admission
    api_keys: tuple[str, ...] = ()  # empty: every client is served
    allowed_origins: tuple[str, ...] = ()
    # Each bounds work to one request at a time:
    one_long_body: asyncio.Lock = field(default_factory=asyncio.Lock)  # parsing it, which lets nothing else run
    one_long_text: asyncio.Lock = field(default_factory=asyncio.Lock)  # tokenising it, which takes memory
    one_huge_text: asyncio.Lock = field(default_factory=asyncio.Lock)  # tokenising it, which takes seconds

    @property
    def limits(self) -> Limits:
        """The smaller of the model's limits and those of the present workers."""
        return merged(self.model_limits, self.control.limits)

    def new_detokenizer(self, prompt_ids: Sequence[int], skip_special: bool) -> Detokenizer:
        """The detokenizer for one choice of this prompt."""
        return Detokenizer() if self.tokenizer is None else self.tokenizer.detokenizer(prompt_ids, skip_special)
