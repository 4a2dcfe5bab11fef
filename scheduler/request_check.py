"""Checks the numbers and token ids that another process sends to a worker. Pure.

A wrong id or count in a launch would fail every request in it, or end the process. So it is refused on arrival.
"""

from collections.abc import Sequence

from protocol.messages_gateway import SamplingParams

MAX_ATTEMPT = 2**32 - 1  # the largest that a frame's header holds, as for MAX_RESERVATION
MAX_RESERVATION = 2**64 - 1
MAX_TOP_K = 2**63 - 1  # the largest int64
MAX_CHOICE = 2**31 - 1


def request_fault(
    prompt_ids: Sequence[int], sampling: SamplingParams, num_choices: int, *, vocab_size: int, max_choices: int
) -> str | None:
    """The first field that is out of range, its value and what was expected; or None."""
    if not prompt_ids:
        return "prompt: got no tokens, expected at least 1"
    low, high = min(prompt_ids), max(prompt_ids)
    if low < 0 or high >= vocab_size:
        return f"prompt: got token id {low if low < 0 else high}, expected ids in [0, {vocab_size})"

    if sampling.max_tokens < 1:
        return f"max_tokens: got {sampling.max_tokens}, expected at least 1"
    if sampling.top_k > MAX_TOP_K:
        return f"top_k: got {sampling.top_k}, expected at most {MAX_TOP_K}"
    if num_choices < 1:
        return f"n: got {num_choices}, expected at least 1"
    if num_choices > max_choices:
        return f"n: got {num_choices}, this worker runs at most {max_choices} choices"
    return None


def replay_fault(
    prompt_ids: Sequence[int], sampling: SamplingParams, num_choices: int, first_choice: int, num_replayed: int
) -> str | None:
    """What is wrong with the choices' numbers or with the outputs replayed to them; or None."""
    if not 0 <= first_choice <= MAX_CHOICE:
        return f"first_choice: got {first_choice}, expected 0 to {MAX_CHOICE}"
    if not num_replayed:
        return None
    most = min(len(prompt_ids), sampling.max_tokens) - 1
    if not 0 < num_replayed <= most:
        return f"num_replayed: got {num_replayed}, expected 0 to {most}: less than the prompt and than max_tokens"
    if num_choices != 1:
        return f"num_replayed: got {num_replayed} for {num_choices} choices, expected one choice"
    return None


def transfer_fault(attempt: int, reservation: int = 0) -> str | None:
    """The number that does not fit into a frame's header, or None."""
    if not 0 <= attempt <= MAX_ATTEMPT:
        return f"attempt: got {attempt}, expected 0 to {MAX_ATTEMPT}"
    if not 0 <= reservation <= MAX_RESERVATION:
        return f"reservation: got {reservation}, expected 0 to {MAX_RESERVATION}"
    return None


def first_tokens_fault(first_tokens: Sequence[int], num_choices: int, vocab_size: int) -> str | None:
    """Why these cannot be the first tokens of `num_choices` choices, or None."""
    if len(first_tokens) != num_choices:
        return f"prefill sent {len(first_tokens)} first tokens, expected {num_choices}"
    wrong = [token for token in first_tokens if not 0 <= token < vocab_size]
    if wrong:
        return f"prefill sent the first token {wrong[0]}, expected ids in [0, {vocab_size})"
    return None
