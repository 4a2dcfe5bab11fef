"""Whether KV can move between two workers, and whether that of their drafts moves with it."""

from dataclasses import dataclass, replace

from protocol.fingerprint import Fingerprint, difference
from protocol.kv_layout import KvLayout, mismatch


@dataclass(frozen=True)
class Serves:
    """What a worker serves: its model and its draft, and the shape of their KV."""

    worker_id: str
    layout: KvLayout
    fingerprint: Fingerprint

    @property
    def without_draft(self) -> "Serves":
        """The same model without its draft."""
        return replace(self, layout=self.layout.without_draft, fingerprint=replace(self.fingerprint, draft=None))


def pair_fault(one: Serves, other: Serves) -> str | None:
    """One sentence with the first difference that prevents KV from moving, and both values; or None.

    Page sizes may differ.
    """
    models = one.layout.without_draft, other.layout.without_draft
    ids = one.worker_id, other.worker_id
    return (
        mismatch(*models, *ids)
        or difference(one.fingerprint, other.fingerprint, *ids)
        or mismatch(one.layout, other.layout, *ids)
    )


def moves(sender: Serves, receiver: Serves, *, may_lack_draft: bool) -> KvLayout | None:
    """The layout of the KV that moves, in the sender's pages: its own, or without its draft if the two drafts differ
    and the receiver takes KV without its draft's. None if no KV can move."""
    if pair_fault(sender, receiver) is None:
        return sender.layout
    if may_lack_draft and pair_fault(sender.without_draft, receiver.without_draft) is None:
        return sender.layout.without_draft
    return None
