"""How many choices, prompts and stop strings one request may have."""

from gateway.words.places import NUM_CHOICES, PROMPTS, STOPS, Fault, named
from gateway.words.request import Ask
from runtime.settings import HttpLimits


def check_counts(ask: Ask, limits: HttpLimits, num_prompts: int | None = None) -> None:
    """Fault if one request has too many choices, prompts or stop strings. `num_prompts`: if the client's request has
    more prompts than this Ask."""
    num_prompts = len(ask.prompts) if num_prompts is None else num_prompts
    with named(ask.origins):
        for at, what, number, most in (
            (NUM_CHOICES, "choices", ask.num_choices, limits.max_choices),
            (PROMPTS, "prompts", num_prompts, limits.max_prompts),
            (STOPS, "strings", len(ask.stops), limits.max_stop_strings),
        ):
            if number > most:
                raise Fault(at, at, f": got {number} {what}, expected at most {most}")

        if ask.num_choices * num_prompts > limits.max_choices_in_flight:
            raise Fault(
                NUM_CHOICES,
                NUM_CHOICES,
                f": got {ask.num_choices} for each of {num_prompts} prompts, "
                f"expected at most {limits.max_choices_in_flight} in all",
            )
