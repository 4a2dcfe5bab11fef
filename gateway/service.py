"""The parts of one gateway that its routes share."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gateway.admission import Admission
from gateway.control import Control
from gateway.detokenizer import Detokenizer, NoText
from gateway.limits import Limits
from gateway.metrics import Metrics
from gateway.model_names import ModelNames
from gateway.tokenizer import TextTokenizer
from gateway.translate import Translator
from runtime.clock import Clock
from runtime.settings import HttpLimits


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
        return NoText() if self.tokenizer is None else self.tokenizer.detokenizer(prompt_ids, skip_special)


def merged(model: Limits, workers: Limits) -> Limits:
    """The workers' limits, none above the model's. The workers' vocabulary size wins."""
    known = [length for length in (model.context_length, workers.context_length) if length is not None]
    vocab_size = model.vocab_size if workers.vocab_size is None else workers.vocab_size
    return replace(workers, context_length=min(known, default=None), vocab_size=vocab_size)
