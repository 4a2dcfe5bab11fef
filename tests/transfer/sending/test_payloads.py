from itertools import pairwise

import pytest

from protocol.messages_gateway import RankEndpoint, WorkerAddress
from tests.transfer.memory import LAYOUT, HostMemory
from transfer.plan import KvFrame
from transfer.sending.payloads import GATHER_BELOW, Payload, Payloads
from transfer.sending.transfer import Destination, SendTransfer

TARGET = Destination(WorkerAddress("d0", 9, ranks=(RankEndpoint("nowhere"),)), reservation=4, attempt=2)
APART, TOGETHER = (5, 1, 3), (2, 3, 4)  # pages of three runs, and of one


def payload_of(memory: HostMemory, pages: tuple[int, ...], gather_below: int | None = None) -> tuple[Payload, bytes]:
    """The payload of a whole layer of a prompt in `pages`, read as it is sent, and those pages."""
    num_tokens = len(pages) * LAYOUT.page_size
    transfer = SendTransfer(TARGET, LAYOUT, pages, num_tokens)
    payload = Payloads(memory, gather_below).read(transfer, KvFrame(1, 0, len(pages), num_tokens), None)
    return payload, b"".join(memory.page_bytes_view(1, page, 1) for page in pages)


@pytest.mark.parametrize("pages", [APART, TOGETHER])
@pytest.mark.parametrize("gather_below", [0, GATHER_BELOW, None])
def test_the_content_is_that_of_the_pages_and_is_what_travels(pages: tuple[int, ...], gather_below: int | None) -> None:
    payload, expected = payload_of(HostMemory(LAYOUT, 8, seed=1), pages, gather_below)
    assert b"".join(payload.content) == expected
    assert b"".join(payload.parts) == expected


@pytest.mark.parametrize(
    ("pages", "gather_below", "is_shared"),
    [(APART, 0, True), (APART, GATHER_BELOW, False), (APART, None, False), (TOGETHER, GATHER_BELOW, True)],
)
def test_only_several_short_runs_are_copied(pages: tuple[int, ...], gather_below: int | None, is_shared: bool) -> None:
    memory = HostMemory(LAYOUT, 8, seed=1)
    payload, before = payload_of(memory, pages, gather_below)
    list(payload.content)
    assert payload.is_shared is is_shared
    assert len(payload.parts) == (1 + sum(after != page + 1 for page, after in pairwise(pages)) if is_shared else 1)
    memory.pool[:] = bytes(len(memory.pool))
    assert (b"".join(payload.parts) == before) is not is_shared, "views show what the pages hold now"


def test_the_last_frame_has_no_kv() -> None:
    transfer = SendTransfer(TARGET, LAYOUT, (1,), 4)
    for layer in range(LAYOUT.num_layers):
        for frame in transfer.layer_ready(layer, 4):
            transfer.sent(transfer.header(frame, 3))
    last = transfer.finish((7,), (), 0)
    payload = Payloads(HostMemory(LAYOUT, 2, seed=1)).read(transfer, last, None)
    assert list(payload.parts) == list(payload.content) == [transfer.last_payload(last)]
    assert not payload.is_shared
