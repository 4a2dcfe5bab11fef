"""The largest request that the present workers can serve together."""

from operator import attrgetter

from gateway.routing.members import Member
from gateway.words.limits import Limits
from protocol.messages_gateway import Role


def limits_of(members: tuple[Member, ...], model: Limits) -> Limits:
    """The largest request that these workers can serve together, within the context length of the `model`. The
    workers' vocabulary size wins."""
    if not members:
        return model

    decodes = [member.registered for member in members if member.role is not Role.PREFILL]
    prefills = [member.registered for member in members if member.role is not Role.DECODE]
    decode, prefill = (
        max(facts or prefills + decodes, key=attrgetter("max_total_tokens")) for facts in (decodes, prefills)
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
        max_choices=max((facts.max_running_requests for facts in decodes), default=None),
        places=tuple((facts.max_running_requests, facts.max_queued_requests) for facts in decodes) or None,
    )
