"""Checks of a prompt and its rules against the limits of model and workers, with the refusals that name them."""

from collections.abc import Sequence
from typing import NoReturn

from gateway.words.limits import Limits, too_long
from gateway.words.places import MAX_TOKENS, MIN_TOKENS, STOP_TOKEN_IDS, Fault, Place
from protocol.messages_gateway import SamplingParams

UNKNOWN_REST = 16  # max_tokens of a chat when no limit is known


def check_ids(prompt: Sequence[int], where: Place, limits: Limits) -> None:
    """Fault unless the prompt has tokens, all within the vocabulary."""
    if not prompt:
        refuse(where, "is empty (0 tokens), expected at least 1 token")
    if limits.vocab_size is not None and max(prompt) >= limits.vocab_size:
        refuse(where, f"got token id {max(prompt)}, expected ids below the vocabulary size {limits.vocab_size}")


def check_drawable(sampling: SamplingParams, limits: Limits) -> None:
    """Fault if every id of the vocabulary ends a choice while `min_tokens` forbids an end: workers could draw no
    token. With a vocabulary of 3, stop tokens 0 and 1 and EOS 2, the first token may be none of them."""
    if not sampling.min_tokens or limits.vocab_size is None:
        return
    num_banned = sum(0 <= token_id < limits.vocab_size for token_id in sampling.ending_ids)
    if num_banned == limits.vocab_size:
        which = "these are" if sampling.ignore_eos else "these and EOS are"
        refuse(
            STOP_TOKEN_IDS,
            f"{which} all {num_banned} ids of the vocabulary, and ",
            MIN_TOKENS,
            f", which is {sampling.min_tokens}, forbids each of them at first: expected one id that does not end the "
            "choice",
        )


def prompt_too_long(where: Place, num_chars: int, limits: Limits, beside: Sequence[str | Place] = ()) -> Fault:
    """The error for a text whose tokenising was stopped: it has more tokens than any prompt may have. `beside`: what
    the sentence names beside `where`."""
    longest = limits.longest_prompt
    fault = (where, *beside, f" has {num_chars} characters, more than {longest} tokens")
    return too_long(where, fault, limits, None if longest == limits.context_length else longest)


def max_tokens(
    num_prompt: int,
    asked: int | None,
    default: int | None,
    num_choices: int,
    where: Place,
    limits: Limits,
    beside: Sequence[str | Place] = (),
) -> int:
    """Returns `asked`, or as much of `default` as fits (if None, all that fits). ContextLengthExceeded if even that
    is too much; it speaks of MAX_TOKENS only if the client has sent it. `beside`: see prompt_too_long."""
    least = asked if asked is not None else 1  # 0: the prompt alone
    fault: tuple[str | Place, ...] = (where, *beside, f" has {num_prompt} tokens")
    if asked is not None:
        fault += (" and ", MAX_TOKENS, f" is {asked}")

    left = None if limits.context_length is None else limits.context_length - num_prompt
    if left is not None and least > left:
        end = ", which leaves none for the answer" if asked is None else f": together {num_prompt + asked}"
        raise too_long(MAX_TOKENS if left >= 1 else where, (*fault, end), limits)

    room = limits.room(num_prompt, num_choices)
    if room is not None and max(least, 1) > room:
        times = f" for each of {num_choices} choices" if num_choices > 1 else ""
        pools = [pool for pool in (limits.pool_tokens, limits.prefill_pool_tokens) if pool is not None]
        raise too_long(MAX_TOKENS if room >= 1 else where, (*fault, times), limits, min(pools))

    if asked is not None:
        return asked
    return min((limit for limit in (left, room, default) if limit is not None), default=UNKNOWN_REST)


def refuse(at: Place, *what: str | Place) -> NoReturn:
    """Refuses the value of a place."""
    raise Fault(at, at, ": ", *what)
