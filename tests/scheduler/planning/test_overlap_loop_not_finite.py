"""A model that computes NaN for one request: that request fails, its neighbours and successors are exact."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from model.inputs import ModelInput
from model.paged_kv import PagedKv
from tests.decode.driving import VOCAB, greedy, make_cluster
from tests.doubles.hash_model import FakeRunner

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class BrokenRunner(FakeRunner):
    """NaN in the logits (or in the KV as well) of whoever is at `position`."""

    position: int = 0
    in_kv: bool = False
    hits: tuple[list[int], ...] = ([],)

    def forward(self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None) -> Tensor:
        logits_LV = super().forward(inp, kv, on_layer)
        is_bad_L = inp.positions_T[inp.logit_indices_L] == self.position
        self.hits[0].append(int(is_bad_L.sum()))
        if self.in_kv:
            for slot in inp.slots_T[inp.positions_T == self.position].tolist():
                for layer in range(self.num_layers):
                    kv.layer(layer)[slot // kv.layout.page_size, :, slot % kv.layout.page_size] = torch.nan
        poisoned: Tensor = logits_LV.masked_fill(is_bad_L[:, None], torch.nan)
        return poisoned


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("num_outputs", [0, 1, 3])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("in_kv", [False, True])
def test_only_the_request_with_nan_fails(topology: str, overlap: bool, num_outputs: int, n: int, in_kv: bool) -> None:
    """`num_outputs` tokens are right before the scores are not: 0 is found by prefill, more by decode."""
    runner = BrokenRunner(vocab_size=VOCAB, context_length=256, position=40 + num_outputs - 1, in_kv=in_kv, hits=([],))
    cluster = make_cluster(topology, runner, overlap=overlap, num_pages=64)
    for name, length in (("before", 9), ("bad", 40), ("after", 13)):
        cluster.ask(name, length, greedy(12), n)
    cluster.run()
    assert sum(runner.hits[0]) >= n  # the fault was there
    assert cluster.failures["bad"].code == "internal_error"
    assert cluster.failures["bad"].message == "the model's scores for the next token are not finite"
    assert all(len(cluster.answers["bad", choice].ids) <= num_outputs for choice in range(n))
    for index in range(6):  # in the very pages that hold NaN now
        cluster.ask(f"later-{index}", 25, greedy(8), n)
    cluster.run()
    cluster.expect_end(failed=["bad"])
