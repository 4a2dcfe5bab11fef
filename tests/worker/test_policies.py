"""Who is refused when too many wait, and how prompts and decodes take turns."""

import pytest

from worker.policies import Policies, prompts_first


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
