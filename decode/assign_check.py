"""Whether a decode worker can do what an Assign asks of it. Pure.

What it does not know: who else is here, or how much is free just now.
"""

from protocol.messages_gateway import Assign
from scheduler.engine import Engine
from scheduler.req import kv_tokens
from scheduler.request_check import replay_fault, transfer_fault


def assign_fault(assign: Assign, engine: Engine) -> str | None:
    """The field that makes it senseless, what it says and what was expected; or None."""
    prompt, n, left = assign.prompt_ids, assign.num_choices, assign.sampling.max_tokens - assign.num_replayed
    return (
        engine.fault(prompt, assign.sampling, n)
        or replay_fault(prompt, assign.sampling, n, assign.first_choice, assign.num_replayed)
        or transfer_fault(assign.attempt)
        or engine.never_fits(len(prompt), kv_tokens(len(prompt), left), n)
    )
