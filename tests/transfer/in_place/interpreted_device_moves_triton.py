"""The kernel of moves, interpreted, against the CPU's. Run by test_device_moves_triton.py in a process of its own.

Triton decides when it is imported whether kernels are interpreted, so TRITON_INTERPRET=1 must be there from the start.
"""

import pytest

import tests.interpreted  # noqa: F401 - mends what the installed versions need
from tests.transfer.in_place.device_cases import CASES, Case, moved_by_kernel


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_cpu(case: Case) -> None:
    assert moved_by_kernel(case, "cpu") == case.moved_on_cpu()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reads_without_writing(case: Case) -> None:
    pool, totals = moved_by_kernel(case, "cpu", writes=False)
    assert pool == case.pool_before() and totals == case.moved_on_cpu()[1]
