"""What every attention backend must do, whatever computes it: the same cases, against attention in float64.

A backend's own test file calls `check_case` for each of CASES, and `check_alone_or_together` if the backend says that a
request's result does not depend on its neighbours. One with tree masks is called for TREE_CASES, too, and
`check_a_mask_that_hides_nothing`.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.attention import AttentionBackend
from model.inputs import ModelInput
from protocol.kv_layout import LayerLayout
from tests.model.attention_cases import Case, make_case

MakeBackend = Callable[[int, LayerLayout], AttentionBackend]  # of a number of query heads and a layout of pages
TOLERANCE = {"float32": 1e-4, "float16": 0.005, "bfloat16": 0.03}


@dataclass(frozen=True)
class ContractCase:
    """`extends` are (chunk, context with it), `decodes` contexts. `padding`: lanes of a graph that nobody has.
    `wider`: pages by which the page table is wider than the longest context. `trees`: (start, bits) of each decode.
    `window`, `scale` and `sinks`: see Scoring."""

    name: str
    extends: tuple[tuple[int, int], ...] = ()
    decodes: tuple[int, ...] = ()
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 16
    padding: int = 0
    wider: int = 0
    trees: tuple[tuple[int, int], ...] = ()
    window: int = 0
    scale: float | None = None
    sinks: bool = False

    def __str__(self) -> str:
        return self.name


CASES = (
    ContractCase("a prompt of one token", ((1, 1),)),
    ContractCase("a whole prompt", ((37, 37),)),
    ContractCase("chunks with and without a history", ((5, 20), (16, 16), (1, 33))),
    ContractCase("a decode of one token", (), (1,)),
    ContractCase("decodes of all lengths", (), (1, 16, 17, 90, 3)),
    ContractCase("decodes about the end of a split", (), (255, 256, 257, 511, 512, 513)),
    ContractCase("a decode of many splits", (), (2100, 3)),
    ContractCase("chunks and decodes", ((9, 9), (12, 40)), (31, 2, 300)),
    ContractCase("padded lanes", (), (31, 2, 64), padding=5),
    ContractCase("no rows at all"),
    ContractCase("no rows of a wide page table", wider=3),
    ContractCase("a kv head for each query head", ((12, 40),), (70, 5), heads=(3, 3), head_dim=12),
    ContractCase("one kv head for all", ((12, 40), (7, 7)), (70, 5), heads=(20, 1), head_dim=8),
    ContractCase("an odd head size", ((12, 40),), (70, 300), heads=(10, 2), head_dim=40),
    ContractCase("heads of a real model", ((64, 100),), (257, 33), heads=(8, 2), head_dim=128),
)


def _random_masks(contexts: tuple[int, ...], seed: int) -> tuple[tuple[int, int], ...]:
    chance = random.Random(seed)
    return tuple((chance.randint(max(1, context - 80), context), chance.getrandbits(64)) for context in contexts)


ALL_BITS = 2**64 - 1
_LENGTHS = (1, 5, 16, 17, 33, 70, 90, 130, 300)

TREE_CASES = (
    *(ContractCase(f"random trees {seed}", (), _LENGTHS, trees=_random_masks(_LENGTHS, seed)) for seed in range(4)),
    ContractCase("nodes of one tree", (), (21, 22, 23, 24), trees=((20, 1), (20, 0b11), (20, 0b101), (20, 0b1011))),
    ContractCase("starts about the end of a page", (), (40,) * 5, trees=tuple((at, 1 << 5) for at in range(14, 19))),
    ContractCase("the first slot alone", (), (40, 1, 400), trees=((1, 0),) * 3),
    ContractCase("the first bit and the last", (), (90, 90, 90), trees=((26, 1), (26, 1 << 63), (26, 1 | 1 << 63))),
    ContractCase("slots behind the last bit", (), (75, 76, 400), trees=((11, ALL_BITS),) * 3),
    ContractCase("splits that nobody sees", (), (900, 900, 600), trees=((200, 6), (500, 1 << 40), (1, 1 << 20))),
    ContractCase("chunks and trees", ((9, 9), (12, 40)), (31, 30, 300), trees=((20, 0b101), (20, 0b11), (250, 9))),
    ContractCase("trees and padded lanes", (), (31, 300), padding=5, trees=((20, 0b101), (250, 9))),
    ContractCase(
        "trees, a kv head for each query head", (), (70, 5), heads=(3, 3), head_dim=12, trees=((9, 7 << 50), (3, 1))
    ),
    ContractCase(
        "trees, one kv head for all", ((12, 40),), (70, 5), heads=(20, 1), head_dim=8, trees=((9, 7 << 50), (3, 1))
    ),
    ContractCase(
        "trees, heads of a real model", (), (257, 33), heads=(8, 2), head_dim=128, trees=((200, 7 << 40), (30, 5))
    ),
)


_AROUND_24 = ((23, 23), (24, 24), (25, 25), (49, 49), (5, 26), (1, 24), (20, 90))
_MANY = (1, 23, 24, 25, 26, 40, 47, 48, 90, 300, 700)

WINDOW_CASES = (
    ContractCase("a window, chunks", _AROUND_24, window=24),
    ContractCase("a window, decodes", (), _MANY, window=24),
    ContractCase("a window, chunks and decodes", _AROUND_24, (31, 2, 300), window=24),
    ContractCase("a window of one token", ((9, 9), (12, 40)), (31, 1), window=1),
    ContractCase("a window of a page", ((40, 40), (12, 40)), (31, 16, 17), window=16),
    ContractCase("a window over steps and splits", ((130, 400),), (700, 300, 259, 2100), window=257),
    ContractCase("a window longer than any context", ((9, 9), (12, 40)), (31, 2), window=400),
    ContractCase("a window, padded lanes", (), (31, 2, 64), padding=5, window=24),
    ContractCase("a window, no rows at all", window=24),
    ContractCase("a window, heads of a real model", ((64, 300),), (257, 33), heads=(8, 2), head_dim=128, window=128),
    ContractCase("another scale", ((12, 40),), (70, 300), scale=0.11),
)
SINK_CASES = (
    ContractCase("sinks, a whole prompt", ((37, 37), (1, 1)), sinks=True),
    ContractCase("sinks, chunks and decodes", ((9, 9), (12, 40)), (31, 1, 300, 700), sinks=True),
    ContractCase("sinks and a window", _AROUND_24, (1, 24, 25, 300), window=24, sinks=True, scale=0.3),
    ContractCase("sinks, one kv head for all", ((12, 40),), (70, 5), heads=(20, 1), head_dim=8, sinks=True),
    ContractCase("sinks, decodes alone", (), (70, 5, 24), heads=(3, 3), head_dim=12, sinks=True, window=8),
)
WINDOW_TREE_CASES = (  # a window is longer than a tree has levels
    *(ContractCase(f"a window, trees {n}", (), _LENGTHS, trees=_random_masks(_LENGTHS, n), window=70) for n in (0, 1)),
    ContractCase("a window, a tree", (), (40, 41, 42), trees=((39, 1), (39, 0b11), (39, 0b101)), window=24, sinks=True),
    ContractCase("a window, chunks, trees", ((9, 30),), (31, 300), trees=((20, 0b101), (250, 9)), window=8),
)
ALL_CASES = (*CASES, *TREE_CASES, *WINDOW_CASES, *SINK_CASES, *WINDOW_TREE_CASES)


def check_case(
    make: MakeBackend, case: ContractCase, page_size: int, device: str = "cpu", dtype: str = "float32"
) -> None:
    """A backend computes what the formula says, in the dtype and shape of the queries. Slots that nobody wrote hold
    NaN, and must not be seen."""
    made = make_case(
        case.extends,
        case.decodes,
        page_size=page_size,
        heads=case.heads,
        head_dim=case.head_dim,
        dtype=dtype,
        trees=case.trees,
        window=case.window,
        scale=case.scale,
        sinks=case.sinks,
    )
    made = _padded(made, case.padding) if case.padding else made
    table_BP = F.pad(made.inp.page_table_BP, (0, case.wider))
    made = replace(made, inp=replace(made.inp, page_table_BP=table_BP))
    backend = make(case.heads[0], made.layout)
    out_THD = _attended(backend, made, device)
    assert out_THD.shape == made.q_THD.shape and out_THD.dtype == made.q_THD.dtype
    wanted = slice(0, made.expected_THD.shape[0])
    difference_THD = (out_THD[wanted].double() - made.expected_THD).abs()
    assert not difference_THD.numel() or float(difference_THD.max()) < TOLERANCE[dtype]  # NaN is not less


def check_a_mask_that_hides_nothing(
    make: MakeBackend, page_size: int, device: str = "cpu", dtype: str = "float32"
) -> None:
    """Decodes with all bits have the results of decodes without a tree mask, bit for bit."""
    lengths = (700, 40, 256, 1, 513, 90)
    plain = make_case((), lengths, page_size=page_size, dtype=dtype)
    backend = make(4, plain.layout)
    expected_THD = _attended(backend, plain, device)
    for behind in (0, 1, 5, 16, 64):
        starts_D = (plain.inp.seq_lens_B - behind).clamp(min=1)
        inp = replace(plain.inp, tree_starts_D=starts_D, tree_bits_D=torch.full_like(starts_D, -1))
        assert torch.equal(_attended(backend, replace(plain, inp=inp), device), expected_THD), behind


def check_alone_or_together(
    make: MakeBackend,
    page_size: int,
    device: str = "cpu",
    dtype: str = "float32",
    *,
    trees: bool = False,
    window: int = 0,
) -> None:
    """Every decode has the same bits alone, in a batch, in another order, and beside chunks and padding. With `trees`,
    it has a tree mask."""
    lengths = (700, 40, 256, 1, 513, 90)
    masks = _random_masks(lengths, 0) if trees else ()
    together = make_case((), lengths, page_size=page_size, dtype=dtype, trees=masks, window=window)
    backend = make(4, together.layout)
    expected_THD = _attended(backend, together, device)
    orders = [[row] for row in range(len(lengths))] + [[5, 4, 3, 2, 1, 0], [0, 3]]
    for rows in orders:
        out_THD = _attended(backend, _decodes_of(together, rows), device)
        assert torch.equal(out_THD, expected_THD[rows]), rows
    out_THD = _attended(backend, _padded(together, 3), device)
    assert torch.equal(out_THD[: len(lengths)], expected_THD)
    out_THD = _attended(backend, _after_a_chunk(together), device)
    assert torch.equal(out_THD[-len(lengths) :], expected_THD)


def _attended(backend: AttentionBackend, case: Case, device: str) -> Tensor:
    moved: dict[str, Any] = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in vars(case.inp).items()}
    by = case.scoring
    by = replace(by, sinks_H=None if by.sinks_H is None else by.sinks_H.to(device))
    plan = backend.plan(ModelInput(**moved), case.layout, by.window)
    return backend.attend(case.q_THD.to(device), case.kv_layer.to(device), plan, by).cpu()


def _decodes_of(case: Case, rows: list[int]) -> Case:
    """Some of the decodes of a case, in that order."""
    inp = case.inp
    per_row = replace(inp, logit_indices_L=inp.positions_T).mapped(lambda each: each[rows])
    own = replace(
        per_row,
        logit_indices_L=inp.logit_indices_L,
        num_decodes=len(rows),
        max_decode_seq_len=int(inp.seq_lens_B[rows].max()),
    )
    return replace(case, inp=own, q_THD=case.q_THD[rows])


def _padded(case: Case, count: int) -> Case:
    """The decodes as a graph has them: `count` lanes of one token on page 0, a page table wider than any context that
    names anybody's pages there, and a bound of lengths that nobody reaches."""
    inp = case.inp
    last_page = int(inp.page_table_BP.max())
    table_BP = inp.page_table_BP.clone()
    for row, seq_len in enumerate(inp.seq_lens_B.tolist()):
        table_BP[row, case.layout.num_pages(seq_len) :] = last_page
    table_BP = F.pad(table_BP, (0, 7), value=last_page)
    own = replace(
        inp,
        input_ids_T=F.pad(inp.input_ids_T, (0, count)),
        positions_T=F.pad(inp.positions_T, (0, count)),
        slots_T=F.pad(inp.slots_T, (0, count)),
        page_table_BP=F.pad(table_BP, (0, 0, 0, count)),
        seq_lens_B=F.pad(inp.seq_lens_B, (0, count), value=1),
        num_decodes=inp.num_decodes + count,
        tree_starts_D=None if inp.tree_starts_D is None else F.pad(inp.tree_starts_D, (0, count), value=1),
        tree_bits_D=None if inp.tree_bits_D is None else F.pad(inp.tree_bits_D, (0, count)),
        max_decode_seq_len=table_BP.shape[1] * case.layout.page_size,
    )
    return replace(case, inp=own, q_THD=F.pad(case.q_THD, (0, 0, 0, 0, 0, count), value=1.0))


def _after_a_chunk(case: Case) -> Case:
    """The decodes of a case behind a chunk of 5 tokens that has the pages of the first of them."""
    inp = case.inp
    own = replace(
        inp,
        input_ids_T=F.pad(inp.input_ids_T, (5, 0)),
        positions_T=torch.cat((torch.arange(5), inp.positions_T)),
        slots_T=F.pad(inp.slots_T, (5, 0)),
        page_table_BP=torch.cat((inp.page_table_BP[:1], inp.page_table_BP)),
        seq_lens_B=F.pad(inp.seq_lens_B, (1, 0), value=5),
        extend_lens=(5,),
        extend_seq_lens=(5,),
    )
    return replace(case, inp=own, q_THD=torch.cat((case.q_THD[:1].expand(5, -1, -1), case.q_THD)))


def check_a_graph_can_be_made(make: MakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of decodes takes nothing from the host and gives it nothing: a GPU refuses both while it captures."""
    case = make_case((), (31, 2, 300), page_size=16)
    backend = make(4, case.layout)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("operation not permitted when stream is capturing")

    with monkeypatch.context() as patched:
        for name in ("item", "tolist", "cpu", "__bool__", "__int__"):
            patched.setattr(Tensor, name, refuse)
        patched.setattr(torch, "tensor", refuse)
        for window in (0, 24):
            backend.plan(case.inp, case.layout, window)
