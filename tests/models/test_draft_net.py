"""Several draft steps from every slot at once give what one chain after another gives."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from models.train.draft_net import DraftNet, Eagle3Net, EagleNet, rotation_of
from models.train.mtp_net import MtpNet
from models.train.recipe import Shape

SMALL = Shape(hidden_size=16, intermediate_size=24, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8)
NUM_SLOTS, NUM_STEPS = 9, 4
KNOWN = torch.tensor([1, 4, 5])


class Fused(Eagle3Net):
    """It takes hidden states as they are: a chain's own need no fusing."""

    def fuse(self, features_RSF: torch.Tensor) -> torch.Tensor:
        return features_RSF


@pytest.mark.parametrize("make", [EagleNet, lambda shape: Fused(shape, KNOWN)])
def test_each_step_of_a_chain_sees_its_own_features_behind_the_targets(make: Callable[[Shape], DraftNet]) -> None:
    torch.manual_seed(1)
    net = make(SMALL).double()
    embedded, features = torch.randn(2, 2, NUM_SLOTS, SMALL.hidden_size, dtype=torch.float64)
    together = list(net.unroll(embedded, features, NUM_STEPS))
    assert len(together) == NUM_STEPS
    for start in range(NUM_SLOTS - NUM_STEPS + 1):
        known = features[:, : start + 1]  # the chain's slots take what its steps before have given
        for step in range(NUM_STEPS):
            num_slots = start + step + 1
            [alone] = net.unroll(embedded[:, :num_slots], known, 1)
            torch.testing.assert_close(together[step][:, num_slots - 1], alone[:, -1])
            known = torch.cat((known, alone[:, -1:]), dim=1)


def test_each_of_several_layers_reads_one_token_further_and_what_the_layer_before_gave() -> None:
    torch.manual_seed(2)
    net = MtpNet(replace(SMALL, num_layers=3)).double()
    embedded, features = torch.randn(2, 2, NUM_SLOTS, SMALL.hidden_size, dtype=torch.float64)
    rotation = rotation_of(NUM_SLOTS, SMALL)
    together = list(net.unroll(embedded, features, NUM_STEPS))
    assert len(together) == 3
    hidden = features
    for index, layer in enumerate(net.layers):
        num_slots = NUM_SLOTS - index
        shifted, cut = embedded[:, index:], tuple(each[:num_slots] for each in rotation)
        hidden = layer(shifted, hidden[:, :num_slots], cut)
        torch.testing.assert_close(together[index][:, index:], hidden)


def test_a_head_of_its_own_stands_for_the_tokens_that_it_knows() -> None:
    net = Eagle3Net(Shape(**{**vars(SMALL), "vocab_size": 7}), KNOWN)
    assert net.d2t.tolist() == [1, 3, 3]  # how far each token lies behind the draft's own id
    assert net.t2d.nonzero()[:, 0].tolist() == net.target_ids.tolist() == KNOWN.tolist()
    hidden_NE = torch.randn(2, SMALL.hidden_size)
    logits_NV = net.logits(hidden_NE, torch.zeros(7, SMALL.hidden_size))
    assert torch.equal(logits_NV[:, KNOWN], net.own_logits(hidden_NE, torch.zeros(7, SMALL.hidden_size)))
    assert bool((logits_NV[:, [0, 2, 3, 6]] == float("-inf")).all())
