"""How many tokens a request may have and ask for, with the workers that serve now.

Pure functions on `Limits`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from gateway.membership import Member
from protocol.errors import BadRequest
from protocol.kv_layout import full_pages, longest_choices, pages_for
from protocol.messages_gateway import Role

UNKNOWN_REST = 16  # max_tokens of a chat when no limit is known


class ContextLengthExceeded(BadRequest):
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
    prefill_page_size: int | None = None  # of the largest prefill worker, if it differs
    max_choices: int | None = None  # rows of the largest decode worker

    @property
    def longest_prompt(self) -> int | None:
        """A longer prompt is always refused."""
        bounds = (self.context_length, self.pool_tokens, self.prefill_pool_tokens)
        return min((bound for bound in bounds if bound is not None), default=None)

    def room(self, num_prompt: int, num_choices: int) -> int | None:
        """The largest max_tokens whose KV fits the largest pool; less than 1 if even the prompt does not fit."""
        if self.prefill_pool_tokens is not None:
            size = self.prefill_page_size or self.page_size
            if pages_for(num_prompt, size) > full_pages(self.prefill_pool_tokens, size):
                return 0

        if self.pool_tokens is None:
            return None
        num_pages = full_pages(self.pool_tokens, self.page_size)
        longest = longest_choices(num_prompt, num_choices, num_pages, self.page_size)
        return longest - num_prompt + 1  # nobody reads the KV of the last output


def limits_of(members: tuple[Member, ...]) -> Limits:
    """The largest request that these workers can serve together."""
    if not members:
        return Limits()

    decodes = [member.registered for member in members if member.role is not Role.PREFILL]
    prefills = [member.registered for member in members if member.role is not Role.DECODE]
    decode, prefill = (
        max(each or prefills + decodes, key=attrgetter("max_total_tokens")) for each in (decodes, prefills)
    )

    return Limits(
        context_length=min(member.registered.context_length for member in members),
        vocab_size=min(member.registered.vocab_size for member in members),
        pool_tokens=max((each.max_total_tokens for each in decodes), default=None),
        prefill_pool_tokens=max((each.max_total_tokens for each in prefills), default=None),
        page_size=decode.layout.page_size,
        prefill_page_size=prefill.layout.page_size,
        max_choices=max((each.max_running_requests for each in decodes), default=None),
    )


def merged(model: Limits, workers: Limits) -> Limits:
    """The workers' limits, none above the model's. The workers' vocabulary size wins."""
    known = [length for length in (model.context_length, workers.context_length) if length is not None]
    vocab_size = model.vocab_size if workers.vocab_size is None else workers.vocab_size
    return replace(workers, context_length=min(known, default=None), vocab_size=vocab_size)


def check_ids(prompt: Sequence[int], where: str, limits: Limits) -> None:
    """BadRequest unless the prompt has tokens, all within the vocabulary. `where` names it: "prompt[3]"."""
    param = where.partition("[")[0]
    if not prompt:
        raise BadRequest(f"{where}: is empty (0 tokens), expected at least 1 token", param=param)
    if limits.vocab_size is not None and max(prompt) >= limits.vocab_size:
        raise BadRequest(
            f"{where}: got token id {max(prompt)}, expected ids below the vocabulary size {limits.vocab_size}",
            param=param,
        )


def check_list(prompt: object, limits: Limits) -> None:
    """Refuses a list of token ids that is too long for any prompt, before each id is checked: ContextLengthExceeded.
    Does the same for a list of such lists."""
    longest = limits.context_length
    if not isinstance(prompt, list) or longest is None:
        return
    are_prompts = bool(prompt) and isinstance(prompt[0], list)
    for place, ids in enumerate(prompt) if are_prompts else [(None, prompt)]:
        if isinstance(ids, list) and len(ids) > longest and isinstance(ids[0], int):
            where = "prompt" if place is None else f"prompt[{place}]"
            raise ContextLengthExceeded(
                f"{where} has {len(ids)} tokens: beyond the context length of {longest} tokens", param="prompt"
            )


def check_text(least_tokens: int, num_chars: int, where: str, limits: Limits) -> None:
    """ContextLengthExceeded if a text has too many tokens for sure. Tokenising a long text would take seconds."""
    if limits.context_length is not None and least_tokens > limits.context_length:
        raise ContextLengthExceeded(
            f"{where} has {num_chars} characters, at least {least_tokens} tokens: "
            f"beyond the context length of {limits.context_length} tokens",
            param=where.partition("[")[0],
        )


def prompt_too_long(where: str, num_chars: int, limits: Limits) -> ContextLengthExceeded:
    """The error for a text whose tokenising was stopped: it has more tokens than any prompt may have."""
    longest = limits.longest_prompt
    bound = "context length of" if longest == limits.context_length else "KV memory of a worker, which can hold"
    return ContextLengthExceeded(
        f"{where} has {num_chars} characters, more than {longest} tokens: beyond the {bound} {longest} tokens",
        param=where.partition("[")[0],
    )


def max_tokens(
    num_prompt: int, asked: int | None, default: int | None, num_choices: int, where: str, limits: Limits
) -> int:
    """Returns `asked`, or as much of `default` as fits (if None, all that fits). ContextLengthExceeded if even that
    is too much."""
    least = asked if asked is not None else 1
    together = f"{where} has {num_prompt} tokens and max_tokens is {least}"
    param = where.partition("[")[0]

    left = None if limits.context_length is None else limits.context_length - num_prompt
    if left is not None and least > left:
        raise ContextLengthExceeded(
            f"{together}: together {num_prompt + least}, beyond the context length of {limits.context_length} tokens",
            param="max_tokens" if left >= 1 else param,
        )

    room = limits.room(num_prompt, num_choices)
    if room is not None and least > room:
        times = f" for each of {num_choices} choices" if num_choices > 1 else ""
        pools = [pool for pool in (limits.pool_tokens, limits.prefill_pool_tokens) if pool is not None]
        raise ContextLengthExceeded(
            f"{together}{times}: more than the KV memory of a worker can hold, which is {min(pools)} tokens",
            param="max_tokens" if room >= 1 else param,
        )

    if asked is not None:
        return asked
    return min((limit for limit in (left, room, default) if limit is not None), default=UNKNOWN_REST)
