"""Which workers make a pair, and which KV moves in it."""

from dataclasses import replace

import pytest

from protocol.fingerprint import Fingerprint, WeightsPrint
from protocol.kv_layout import KvLayout, LayerGroup
from protocol.pairs import Serves, moves, pair_fault

TARGET, GROUP = LayerGroup(2, 4, 64), LayerGroup(1, 2, 32, lookahead=1)
DRAFT, OTHER = WeightsPrint("e", facts={"algorithm": "eagle"}), WeightsPrint("f", facts={"algorithm": "eagle3"})
ALONE = KvLayout((TARGET,), 4, "float32")
BOTH = replace(ALONE, groups=(TARGET, GROUP))


def serves(worker_id: str, draft: WeightsPrint | None = DRAFT, layout: KvLayout | None = None) -> Serves:
    return Serves(worker_id, layout or (BOTH if draft else ALONE), Fingerprint("m", draft=draft))


P, D = serves("p"), serves("d")


@pytest.mark.parametrize("may_lack_draft", [False, True])
def test_equal_workers_move_everything_whatever_their_page_sizes(may_lack_draft: bool) -> None:
    assert moves(P, serves("d", layout=replace(BOTH, page_size=1)), may_lack_draft=may_lack_draft) == BOTH
    assert moves(serves("p", None), serves("d", None), may_lack_draft=may_lack_draft) == ALONE


@pytest.mark.parametrize(
    "one,other,says",
    [
        (serves("p", None), D, "--speculative-algorithm is none on p, eagle on d"),
        (P, serves("d", None), "--speculative-algorithm is eagle on p, none on d"),
        (P, serves("d", OTHER), "--speculative-algorithm is eagle on p, eagle3 on d"),
    ],
)
def test_another_draft_is_named_and_moves_nothing_unless_decode_goes_without(
    one: Serves, other: Serves, says: str
) -> None:
    assert pair_fault(one, other) == says
    assert moves(one, other, may_lack_draft=False) is None
    assert moves(one, other, may_lack_draft=True) == ALONE


@pytest.mark.parametrize("may_lack_draft", [False, True])
@pytest.mark.parametrize(
    "other,says",
    [
        (replace(D, fingerprint=Fingerprint("x")), "model fingerprint is m on p, x on d"),
        (serves("d", None, KvLayout((LayerGroup(3, 4, 64),), 4, "float32")), "num_layers is 2 on p, 3 on d"),
        (serves("d", None, replace(ALONE, dtype="float16")), "dtype is float32 on p, float16 on d"),
    ],
)
def test_another_model_moves_nothing(other: Serves, says: str, may_lack_draft: bool) -> None:
    assert pair_fault(P, other) == says
    assert moves(P, other, may_lack_draft=may_lack_draft) is None


def test_a_layout_that_belies_the_fingerprint_is_named() -> None:
    other = serves("d", layout=replace(BOTH, groups=(TARGET, replace(GROUP, head_dim=16))))
    assert pair_fault(P, other) == "head_dim of layer group 1 is 32 on p, 16 on d"
