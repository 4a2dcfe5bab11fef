"""Whether an idle decode worker could serve an Assign. Pure."""

from protocol.messages_gateway import Assign
from scheduler.engine import Engine
from scheduler.req import kv_tokens
from scheduler.request_check import replay_fault, transfer_fault


def assign_fault(assign: Assign, engine: Engine) -> str | None:
    """The first fault of `assign` in one sentence, or None."""
    prompt, n, left = assign.prompt_ids, assign.num_choices, assign.sampling.max_tokens - assign.num_replayed
    return (
        engine.fault(prompt, assign.sampling, n)
        or replay_fault(prompt, assign.sampling, n, assign.first_choice, assign.num_replayed)
        or transfer_fault(assign.attempt)
        or engine.never_fits(len(prompt), kv_tokens(len(prompt), left), n)
    )
