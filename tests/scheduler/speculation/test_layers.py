"""What several draft layers write. That their proposals are right is shown by whole workers, in tests/unified."""

import torch

from model.inputs import ModelInput
from model.paged_kv import PagedKv
from scheduler.speculation.layers import Past, begin_layers
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import CPU

J, OLD = 3, 7.0


def test_slots_without_a_feature_keep_their_kv() -> None:
    """A choice that came back from host memory has no features of its last slots, and their KV is final."""
    runner = FakeRunner(vocab_size=97, context_length=64, draft_seed=1, num_draft_layers=J)
    draft, kv = runner.draft, PagedKv(runner.kv_layout(4), 4)
    assert draft is not None
    layers = range(draft.num_target_layers, draft.num_target_layers + J)
    for layer in layers:
        kv.layer(layer).fill_(OLD)

    slots = torch.tensor([5, 6, 7])  # of page 1
    inp = ModelInput(
        input_ids_T=slots,
        positions_T=torch.tensor([1, 2, 3]),
        slots_T=slots,
        page_table_BP=torch.ones((J, 1), dtype=torch.int64),
        seq_lens_B=torch.tensor([2, 3, 4]),
        extend_lens=(),
        extend_seq_lens=(),
        num_decodes=J,
        max_decode_seq_len=4,
        logit_indices_L=torch.arange(J),
    )
    hidden_BJE = torch.ones((1, J, draft.hidden_size))
    hidden_BJE[:, 0] = 0  # nothing is known of the first slot
    past = Past(torch.tensor([[11, 12, 13]], device=CPU), hidden_BJE)
    begin_layers(draft, kv, inp, past, proposes=False)

    for layer in layers:
        in_page = kv.layer(layer)[1]
        assert (in_page[:, 1] == OLD).all(), "KV that was final is written again"
        assert (in_page[:, 2:] != OLD).any(-1).all(), "slots with a feature are written"
