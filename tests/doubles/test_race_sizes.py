"""The race detector, where one memory is seen as elements of two sizes."""

import pytest
import torch

from tests.doubles.race_bench import RaceBench, indices


@pytest.mark.parametrize("by_index", [True, False])
@pytest.mark.parametrize("is_same", [True, False])
def test_only_what_longer_elements_cover_is_touched(by_index: bool, is_same: bool) -> None:
    bench, at = RaceBench(), 2 if is_same else 3
    words, bench.a = bench.a, bench.a.view(torch.int32)

    def longer() -> None:
        words.index_fill_(0, indices(at), 1) if by_index else words[at : at + 1].zero_()

    def body() -> None:
        bench.run(bench.first, lambda: bench.a.index_fill_(0, indices(4), 1))
        bench.run(bench.second, longer)

    bench.expect_race(body) if is_same else bench.expect_none(body)
