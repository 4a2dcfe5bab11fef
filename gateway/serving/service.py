"""What all routes of one gateway share: the model and its names, the workers, limits, and requests in flight."""

import asyncio
from dataclasses import dataclass, field

from gateway.generation.grammars.checks import GrammarChecks
from gateway.generation.tallies import Metrics
from gateway.generation.translate import Translator
from gateway.routing.control import Control
from gateway.serving.admission import Admission
from gateway.serving.in_flight import InFlight
from gateway.serving.long_answers import LongAnswers
from protocol.errors import UnknownModel
from runtime.clock import Clock
from runtime.settings import HttpLimits

MAX_SHOWN = 200  # characters of a wrong name that an error shows


@dataclass(frozen=True)
class ModelNames:
    """The names by which clients may ask for the one model. `served`: those that `/v1/models` lists. `folder`: the text
    of --model, accepted because clients of other servers send it, but not listed."""

    served: tuple[str, ...]
    folder: str | None = None

    @property
    def all(self) -> tuple[str, ...]:
        """All of them, the folder with and without slashes at its end."""
        typed = (self.folder, self.folder.rstrip("/")) if self.folder else ()
        return tuple(dict.fromkeys((*self.served, *typed)))

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
    metrics: Metrics
    clock: Clock
    started_at: int  # seconds since 1970
    http_limits: HttpLimits
    admission: Admission
    grammars: GrammarChecks
    api_keys: tuple[str, ...] = ()  # empty: every client is served
    allowed_origins: tuple[str, ...] = ()
    # Each bounds work to one request at a time:
    one_long_body: asyncio.Lock = field(default_factory=asyncio.Lock)  # parsing it, which lets nothing else run
    one_long_text: asyncio.Lock = field(default_factory=asyncio.Lock)  # tokenising it, which takes memory
    one_huge_text: asyncio.Lock = field(default_factory=asyncio.Lock)  # tokenising it, which takes seconds
    in_flight: InFlight = field(default_factory=InFlight)
    long_answers: LongAnswers = field(default_factory=LongAnswers)
