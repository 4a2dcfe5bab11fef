"""How often a graph runs a kernel, with how many inputs; and the error of a result."""

from dataclasses import replace
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.gpu.kernel_sides import FEWEST_RUNS, MOST_RUNS, inputs_for, relative_error, runs_for, shown
from bench.gpu.step_kernels import SIZES

num_bytes = st.integers(1, 1 << 34)


@given(num_bytes, num_bytes)
def test_a_graph_moves_its_bytes_unless_its_runs_are_too_few_or_too_many(run_bytes: int, graph: int) -> None:
    count = runs_for(run_bytes, graph)
    assert FEWEST_RUNS <= count <= MOST_RUNS
    assert count in (FEWEST_RUNS, MOST_RUNS) or count * run_bytes <= graph < (count + 1) * run_bytes


@given(num_bytes, num_bytes)
def test_inputs_do_not_fit_into_a_cache_unless_every_run_of_a_graph_has_its_own(run_bytes: int, cache: int) -> None:
    size = replace(SIZES["cuda"], cold_bytes=cache)
    count, runs = inputs_for(run_bytes, size), runs_for(run_bytes, size.graph_bytes)
    assert 1 <= count <= runs
    assert count == runs or count * run_bytes > cache >= (count - 1) * run_bytes


def test_an_error_is_relative_and_nan_never_passes() -> None:
    wanted = torch.tensor([3.0, 4.0])
    assert relative_error(wanted + torch.tensor([0.0, 0.5]), wanted) == pytest.approx(0.1)
    assert relative_error(wanted, wanted) == 0.0
    for bad in (torch.tensor([3.0, float("nan")]), torch.tensor([3.0, inf])):
        assert relative_error(bad, wanted) == inf
    assert relative_error(torch.zeros(2), torch.zeros(2)) == inf  # nothing was computed
    assert (shown(inf), shown(0.25)) == (None, 0.25)
