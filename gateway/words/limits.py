"""The limits of a request: what the context and the KV memory of the workers hold, and the error for what is longer."""

from dataclasses import dataclass

from gateway.words.places import Fault, Place
from protocol.kv_layout import full_pages, longest_choices, pages_for


class ContextLengthExceeded(Fault):
    """The prompt and its outputs together are too long. A shorter request would be served."""

    code = "context_length_exceeded"


@dataclass(frozen=True)
class Limits:
    """Lengths in tokens; None if unknown."""

    context_length: int | None = None
    vocab_size: int | None = None
    pool_tokens: int | None = None  # of the largest decode worker
    prefill_pool_tokens: int | None = None  # of the largest prefill worker
    page_size: int = 1
    lookahead: int = 0  # of its layout
    prefill_page_size: int | None = None  # of the largest prefill worker, if it differs
    max_choices: int | None = None  # rows of the largest decode worker
    places: tuple[tuple[int, int], ...] | None = None  # (rows, requests that may wait) of each worker that decodes

    @property
    def longest_prompt(self) -> int | None:
        """A longer prompt is always refused."""
        bounds = (self.context_length, self.pool_tokens, self.prefill_pool_tokens)
        return min((bound for bound in bounds if bound is not None), default=None)

    def prompts_at_once(self, num_choices: int) -> int | None:
        """Prompts of so many choices that all workers together can run or let wait."""
        if self.places is None:
            return None
        return sum(rows // num_choices + num_waiting for rows, num_waiting in self.places)

    def room(self, num_prompt: int, num_choices: int) -> int | None:
        """The largest max_tokens whose KV fits the largest pool; less than 1 if even the prompt does not fit."""
        if self.prefill_pool_tokens is not None:
            size = self.prefill_page_size or self.page_size
            if pages_for(num_prompt, size) > full_pages(self.prefill_pool_tokens, size):
                return 0

        if self.pool_tokens is None:
            return None
        num_pages = full_pages(self.pool_tokens, self.page_size)
        longest = longest_choices(num_prompt, num_choices, num_pages, self.page_size, self.lookahead)
        return longest - num_prompt + 1  # nobody reads the KV of the last output


NO_LIMITS = Limits()


def too_long(at: Place, fault: tuple[str | Place, ...], limits: Limits, pool_tokens: int | None = None) -> Fault:
    """The error for a request beyond the context length, or beyond `pool_tokens`. Clients such as LiteLLM look for its
    first words, which are those of OpenAI."""
    bounds: list[str] = []
    if limits.context_length is not None:
        bounds.append(f"This model's maximum context length is {limits.context_length} tokens")
    if pool_tokens is not None:
        bounds.append(f"the KV memory of a worker can hold {pool_tokens} tokens")
    return ContextLengthExceeded(at, f"{' and '.join(bounds)}, but ", *fault)
