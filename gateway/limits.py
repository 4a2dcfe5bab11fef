"""The limits of a request: what the context and the KV memory of the workers hold, and the refusals that name them."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NoReturn

from gateway.members import Member
from protocol.errors import BadRequest
from protocol.kv_layout import full_pages, longest_choices, pages_for
from protocol.messages_gateway import Role, SamplingParams

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


def limits_of(members: tuple[Member, ...], model: Limits) -> Limits:
    """The largest request that these workers can serve together, within the context length of the `model`. The
    workers' vocabulary size wins."""
    if not members:
        return model

    decodes = [member.registered for member in members if member.role is not Role.PREFILL]
    prefills = [member.registered for member in members if member.role is not Role.DECODE]
    decode, prefill = (
        max(each or prefills + decodes, key=attrgetter("max_total_tokens")) for each in (decodes, prefills)
    )

    lengths = [member.registered.context_length for member in members]
    return Limits(
        context_length=min(lengths if model.context_length is None else [*lengths, model.context_length]),
        vocab_size=min(member.registered.vocab_size for member in members),
        pool_tokens=decode.max_total_tokens if decodes else None,
        prefill_pool_tokens=prefill.max_total_tokens if prefills else None,
        page_size=decode.layout.page_size,
        lookahead=decode.layout.lookahead,
        prefill_page_size=prefill.layout.page_size,
        max_choices=max((each.max_running_requests for each in decodes), default=None),
        places=tuple((each.max_running_requests, each.max_queued_requests) for each in decodes) or None,
    )


def check_ids(prompt: Sequence[int], where: str, limits: Limits) -> None:
    """BadRequest unless the prompt has tokens, all within the vocabulary. `where` names it: "prompt[3]"."""
    if not prompt:
        refuse(where, "is empty (0 tokens), expected at least 1 token")
    if limits.vocab_size is not None and max(prompt) >= limits.vocab_size:
        refuse(where, f"got token id {max(prompt)}, expected ids below the vocabulary size {limits.vocab_size}")


def check_drawable(sampling: SamplingParams, limits: Limits) -> None:
    """BadRequest if every id of the vocabulary ends a choice while `min_tokens` forbids an end: workers could draw no
    token. With a vocabulary of 3, stop tokens 0 and 1 and EOS 2, the first token may be none of them."""
    if not sampling.min_tokens or limits.vocab_size is None:
        return
    num_banned = sum(0 <= each < limits.vocab_size for each in sampling.ending_ids)
    if num_banned == limits.vocab_size:
        which = "these are" if sampling.ignore_eos else "these and EOS are"
        raise BadRequest(
            f"stop_token_ids: {which} all {num_banned} ids of the vocabulary, and min_tokens, which is "
            f"{sampling.min_tokens}, forbids each of them at first: expected one id that does not end the choice",
            param="stop_token_ids",
        )


def check_list(prompt: object, limits: Limits, name: str = "prompt") -> None:
    """Refuses a list of token ids that is too long for any prompt, before each id is checked: ContextLengthExceeded.
    Does the same for a list of such lists. `name`: the client's field that has it."""
    longest = limits.context_length
    if not isinstance(prompt, list) or longest is None:
        return
    are_prompts = bool(prompt) and isinstance(prompt[0], list)
    for place, ids in enumerate(prompt) if are_prompts else [(None, prompt)]:
        if isinstance(ids, list) and len(ids) > longest and isinstance(ids[0], int):
            where = name if place is None else f"{name}[{place}]"
            raise too_long(f"{where} has {len(ids)} tokens", name, limits)


def prompt_too_long(where: str, num_chars: int, limits: Limits) -> ContextLengthExceeded:
    """The error for a text whose tokenising was stopped: it has more tokens than any prompt may have."""
    longest = limits.longest_prompt
    found = f"{where} has {num_chars} characters, more than {longest} tokens"
    return too_long(found, field_of(where), limits, None if longest == limits.context_length else longest)


def too_long(found: str, param: str, limits: Limits, pool_tokens: int | None = None) -> ContextLengthExceeded:
    """The error for a request beyond the context length, or beyond `pool_tokens`. Clients such as LiteLLM look for its
    first words, which are those of OpenAI."""
    bounds: list[str] = []
    if limits.context_length is not None:
        bounds.append(f"This model's maximum context length is {limits.context_length} tokens")
    if pool_tokens is not None:
        bounds.append(f"the KV memory of a worker can hold {pool_tokens} tokens")
    return ContextLengthExceeded(f"{' and '.join(bounds)}, but {found}", param=param)


def max_tokens(
    num_prompt: int,
    asked: int | None,
    default: int | None,
    num_choices: int,
    where: str,
    limits: Limits,
    field: str = "max_tokens",
) -> int:
    """Returns `asked`, or as much of `default` as fits (if None, all that fits). ContextLengthExceeded if even that
    is too much; it names the `field` only if the client has sent it."""
    least = asked if asked is not None else 1  # 0: the prompt alone
    found = f"{where} has {num_prompt} tokens" + ("" if asked is None else f" and {field} is {asked}")

    left = None if limits.context_length is None else limits.context_length - num_prompt
    if left is not None and least > left:
        end = ", which leaves none for the answer" if asked is None else f": together {num_prompt + asked}"
        raise too_long(found + end, field if left >= 1 else field_of(where), limits)

    room = limits.room(num_prompt, num_choices)
    if room is not None and max(least, 1) > room:
        times = f" for each of {num_choices} choices" if num_choices > 1 else ""
        pools = [pool for pool in (limits.pool_tokens, limits.prefill_pool_tokens) if pool is not None]
        raise too_long(found + times, field if room >= 1 else field_of(where), limits, min(pools))

    if asked is not None:
        return asked
    return min((limit for limit in (left, room, default) if limit is not None), default=UNKNOWN_REST)


def refuse(where: str, what: str) -> NoReturn:
    """Refuses a field, or one of several prompts: "prompt[3]"."""
    raise BadRequest(f"{where}: {what}", param=field_of(where))


def field_of(where: str) -> str:
    """The field of a prompt that is named "prompt[3]"."""
    return where.partition("[")[0]
