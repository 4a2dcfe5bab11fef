"""Who is refused when too many wait, and how prompts and decodes take turns."""

from dataclasses import replace

import pytest

from protocol.errors import PrefillQueueFull, QueueFull
from protocol.messages_gateway import Assign
from tests.scheduler.building import greedy
from worker.policies import Policies, prompts_first

ASSIGN = Assign("r", 0, (1, 2, 3), greedy(9), 1, None)


@pytest.mark.parametrize("kind", [QueueFull, PrefillQueueFull])
def test_a_request_is_refused_when_as_many_wait_as_may(kind: type[QueueFull]) -> None:
    policies = Policies(max_queued_requests=3)
    assert policies.refusal(ASSIGN, 2, kind) is None
    for num_waiting in (3, 4):
        refused = policies.refusal(ASSIGN, num_waiting, kind)
        assert type(refused) is kind
        assert refused.message == "the worker's waiting line is full (--max-queued-requests 3)"


def test_what_a_launch_takes() -> None:
    """Less of prompts if others decode in it, or wait for it; without chunks it is one whole prompt."""
    for policies, alone, beside_ten in (
        (Policies(chunk_size=64), 64, 64),
        (Policies(chunk_size=0), None, None),
        (Policies(max_prefill_tokens=100, chunk_size=64), 100, 100),
        (Policies(mixed_chunk_size=50, chunk_size=64), 64, 60),
        (Policies(mixed_chunk_size=50, enable_mixed_chunk=False, chunk_size=64), 64, 50),
        (Policies(mixed_chunk_size=50, chunk_size=7), 7, 7),
        (Policies(mixed_chunk_size=50, chunk_size=0), None, None),
        (Policies(max_prefill_tokens=100, mixed_chunk_size=50, chunk_size=0), 100, 60),
        (Policies(max_prefill_tokens=30, mixed_chunk_size=50, chunk_size=64), 30, 30),
    ):
        assert policies.launch_tokens(0) == alone
        assert policies.launch_tokens(10) == beside_ten


def test_one_that_has_begun_elsewhere_is_never_refused() -> None:
    for assign in (replace(ASSIGN, resumes=True), replace(ASSIGN, num_replayed=1)):
        assert Policies(max_queued_requests=1).refusal(assign, 99) is None


@pytest.mark.parametrize(
    "has_chunks, has_decodes, were_last, expected",
    [
        (True, True, False, True),
        (True, True, True, False),
        (True, False, True, True),
        (True, False, False, True),
        (False, True, False, False),
        (False, True, True, False),
    ],
)
def test_prompts_and_decodes_take_turns(has_chunks: bool, has_decodes: bool, were_last: bool, expected: bool) -> None:
    assert prompts_first(has_chunks, has_decodes, were_last) is expected
