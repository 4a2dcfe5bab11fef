"""Attention of rows with several tokens each: random rows, widths, trees, pages and types.

A token's result has the bits that it has alone, whatever is beside it, and is what the formula says.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from model.attention_cpu import CpuAttention
from model.cpu_kernels import CpuKernels, load_kernels
from model.fake import FakeRunner
from model.inputs import TREE_SLOTS, ModelInput
from model.paged_kv import PagedKv
from model.sampler import signed
from protocol.kv_layout import KvLayout, LayerLayout
from runtime.model_parts import AttentionConfig, LayerConfig, MlpConfig
from tests.model.attention_cases import plain_attention

SHAPES = [(4, 2, 16), (8, 4, 32), (17, 1, 16)]  # query heads, kv heads, head size
TYPES = [("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")]  # of queries, of pages


@dataclass(frozen=True)
class Rows:
    """Decodes of random rows. `seen`: the slots that each sees."""

    inp: ModelInput
    layout: LayerLayout
    kv_layer: Tensor
    q_DHD: Tensor
    seen: list[list[int]]


def random_rows(chance: random.Random, shape: tuple[int, int, int], types: tuple[str, str], *, trees: bool) -> Rows:
    """Rows of one to 20 tokens each, chains or trees. Slots that no token of a row sees hold NaN."""
    num_heads, num_kv_heads, head_dim = shape
    layout = LayerLayout(num_kv_heads, head_dim, chance.choice((1, 4, 16, 24)), types[1])
    made = [(chance.choice((1, 2, 15, 16, 17, 60, 300)), chance.choice((1, 1, 2, 5, 8, 20))) for _ in range(5)]
    counts = [layout.num_pages(context + width) for context, width in made]
    kv_layer = PagedKv(KvLayout.uniform(1, *shape[1:], layout.page_size, types[1]), sum(counts) + 1).layer(0)
    kv_layer.fill_(float("nan"))
    pages = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(chance.randrange(1 << 30))) + 1

    table, seen, lens, starts, bits = list[Tensor](), list[list[int]](), list[int](), list[int](), list[int]()
    for (context, width), own in zip(made, pages.split(counts), strict=True):
        is_tree = trees and chance.random() < 0.8
        for place in range(width):
            mask = chance.getrandbits(TREE_SLOTS) | 1 << place if is_tree else 0
            starts.append(context if is_tree else context + place + 1)
            bits.append(signed(mask))
            lens.append(context + place + 1)
            seen.append([slot for slot in range(lens[-1]) if slot < starts[-1] or mask >> (slot - context) & 1])
            table.append(torch.nn.functional.pad(own, (0, max(counts) - len(own))))
        for slot in {slot for each in seen[-width:] for slot in each}:
            kv = torch.randn((2, num_kv_heads, head_dim)) * chance.choice((0.3, 1, 2))
            kv_layer[own[slot // layout.page_size], :, slot % layout.page_size] = kv.to(kv_layer.dtype)

    num = len(lens)
    each_T = torch.arange(num)
    inp = ModelInput(
        input_ids_T=each_T,
        positions_T=each_T,
        slots_T=each_T,
        page_table_BP=torch.stack(table),
        seq_lens_B=torch.tensor(lens),
        extend_lens=(),
        extend_seq_lens=(),
        num_decodes=num,
        max_decode_seq_len=max(lens),
        logit_indices_L=each_T,
        tree_starts_D=torch.tensor(starts) if trees else None,
        tree_bits_D=torch.tensor(bits) if trees else None,
    )
    q_DHD = torch.randn((num, num_heads, head_dim)).to(getattr(torch, types[0]))
    return Rows(inp, layout, kv_layer, q_DHD, seen)


def kernels_for(shape: tuple[int, int, int], types: tuple[str, str]) -> CpuKernels:
    sizes = replace(FakeRunner().config, layers=(LayerConfig(AttentionConfig(*shape), MlpConfig(1)),))
    return load_kernels(sizes, getattr(torch, types[0]), types[1])


def attended(rows: Rows, kernels: CpuKernels | None, chosen: list[int] | None = None) -> Tensor:
    """The results of the decodes `chosen`, in this order."""
    chosen = list(range(len(rows.seen))) if chosen is None else chosen
    own = replace(rows.inp.mapped(lambda column: column[chosen]), num_decodes=len(chosen))
    backend = CpuAttention(rows.q_DHD.dtype, kernels)
    return backend.attend(rows.q_DHD[chosen], rows.kv_layer, backend.plan(own, rows.layout))


@pytest.fixture
def any_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("any_threads")
@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_a_token_has_its_bits_in_any_row_batch_and_order(
    shape: tuple[int, int, int], types: tuple[str, str], trees: bool
) -> None:
    chance, kernels = random.Random(str((shape, types, trees))), kernels_for(shape, types)
    for _ in range(6):
        torch.set_num_threads(1)
        rows = random_rows(chance, shape, types, trees=trees)
        together, num = attended(rows, kernels), len(rows.seen)
        for token in range(num):
            assert torch.equal(attended(rows, kernels, [token])[0], together[token]), token
        torch.set_num_threads(chance.choice((2, 3, 5)))
        assert torch.equal(attended(rows, kernels), together)
        for _ in range(4):
            some = chance.sample(range(num), chance.randint(1, num))
            some = some if chance.random() < 0.3 else sorted(some)
            assert torch.equal(attended(rows, kernels, some), together[some])


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("in_c", [True, False])
def test_what_the_formula_says(in_c: bool, shape: tuple[int, int, int], types: tuple[str, str], trees: bool) -> None:
    chance = random.Random(str((shape, types, trees)))
    kernels, bound = kernels_for(shape, types) if in_c else None, 1e-4 if types[0] == "float32" else 0.1
    for _ in range(2):
        rows = random_rows(chance, shape, types, trees=trees)
        out_DHD = attended(rows, kernels).double()
        for token, seen in enumerate(rows.seen):
            slots = torch.tensor(seen)
            pages = rows.inp.page_table_BP[token, slots // rows.layout.page_size]
            k_SKD, v_SKD = rows.kv_layer[pages, :, slots % rows.layout.page_size].double().unbind(1)
            expected = plain_attention(rows.q_DHD[token : token + 1].double(), k_SKD, v_SKD)[0]
            assert float((out_DHD[token] - expected).abs().max()) < bound  # NaN is not less


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_reaches_only_tokens_that_see_it(types: tuple[str, str], value: float) -> None:
    """Of a chain: the K, or the V, of a proposal."""
    chance, kernels = random.Random(7), kernels_for(SHAPES[1], types)
    for side in (0, 1):
        rows = random_rows(chance, SHAPES[1], types, trees=False)
        before = attended(rows, kernels)
        last = max(range(len(rows.seen)), key=lambda token: len(rows.seen[token]))
        slot, page_size = len(rows.seen[last]) - 1, rows.layout.page_size
        rows.kv_layer[rows.inp.page_table_BP[last, slot // page_size], side, slot % page_size] = value
        after = attended(rows, kernels)
        assert not after[last].isfinite().all()
        others = [token for token in range(len(rows.seen)) if token != last]
        assert torch.equal(after[others], before[others])
