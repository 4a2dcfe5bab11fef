"""The experts of a mixture on a GPU in Triton: one product for gate and up of all experts, and one for down.

    sort    a program takes one expert: its pairs, one behind the other in the order of tokens, and its blocks
    gate    a program takes a block and some intermediate values: the products with gate and up, and silu(gate) * up
    down    a program takes a block and some outputs
    sum     a program takes a piece of a token: the results of its experts in their order, the shared one last

A pair is a token and one of its experts; a block is up to `rows` pairs of one expert. The host reads nothing back: a
grid has as many blocks as there can be, and those without pairs end at once. Tiles have one shape, however many tokens
there are, and each sum has one order: so what experts give a token has the same bits beside any others. The shared one
is a product of torch's. Sums are float32; intermediate values and each expert's result are rounded once.
Shapes: T tokens, E hidden, I intermediate, X experts, K experts of a token, P = T * K pairs, B blocks, N numbers of a
piece; R rows, C columns and S inputs of a tile.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.experts import Experts
from model.linear import Linear
from model.mlp import Clamped, Mlp, Share
from model.passes import Passes

SORTED: Final = 4096  # pairs that a program reads at once
SORTING_WARPS: Final = 8
PIECE: Final = 1024  # numbers of a token that a program sums
ALIGNED = tl.constexpr(16)  # bytes: the parts of experts begin at multiples of it
NUM_PARTS = tl.constexpr(6)  # of an expert: see Parts
NUM_FACTS = tl.constexpr(3)  # of a block: its expert, where its pairs begin among the sorted ones, and their number


@dataclass(frozen=True)
class Tiles:
    """How much a program of a product takes at once, and how its kernel is compiled."""

    rows: int
    columns: int
    step: int  # inputs
    warps: int = 4
    stages: int = 3


NARROW: Final = Tiles(64, 64, 64)  # for numbers of two bytes; takes 72 KiB of shared memory
FLOAT32: Final = Tiles(32, 32, 32)


class Parts(NamedTuple):
    """What an expert multiplies with and adds, each in memory of its own order. None: it has no such bias."""

    gate_IE: Tensor
    up_IE: Tensor
    down_EI: Tensor
    gate_bias_I: Tensor | None
    up_bias_I: Tensor | None
    down_bias_E: Tensor | None

    @classmethod
    def of(cls, expert: Share) -> "Parts":
        """Those of an MLP, whose gate and up may be merged."""
        assert isinstance(expert, Mlp)
        *first, down = [linear for linear in (*expert.gate_up.linears, expert.down) if isinstance(linear, Linear)]
        halves = 2 // len(first)
        weights = [half for linear in first for half in linear.weight_OI.chunk(halves)]
        biases = [half for linear in first if linear.bias_O is not None for half in linear.bias_O.chunk(halves)]
        gate_up = [*weights, *(biases or (None, None))]
        gate_IE, up_IE, gate_bias_I, up_bias_I = (part if part is None else _aligned(part) for part in gate_up)
        assert gate_IE is not None and up_IE is not None
        bias_E = None if down.bias_O is None else _aligned(down.bias_O)
        return cls(gate_IE, up_IE, _aligned(down.weight_OI), gate_bias_I, up_bias_I, bias_E)

    @property
    def shapes(self) -> tuple[torch.Size | None, ...]:
        """The shape of each."""
        return tuple(None if part is None else part.shape for part in self)

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where each begins in memory; 0 for what it does not have."""
        return tuple(0 if part is None else part.data_ptr() for part in self)


def _aligned(part: Tensor) -> Tensor:
    """The same numbers, one behind the other, from an address on that kernels may read many at once from."""
    part = part.contiguous()
    return part.clone() if part.data_ptr() % ALIGNED.value else part


@dataclass(frozen=True)
class TritonExperts(Experts):
    """Experts of one shape, whose products are grouped."""

    parts: tuple[Parts, ...]  # of each expert
    addresses_X6: Tensor  # of the parts, on the device
    gating: Clamped | None  # None: silu(gate) * up
    tiles: Tiles

    @classmethod
    def of(cls, mixture: Experts, tiles: Tiles | None = None) -> "TritonExperts":
        """The same mixture, whose experts are MLPs with silu or clamped gates. `tiles`: None: those for the dtype."""
        gatings = {expert.gating for expert in mixture.experts if isinstance(expert, Mlp)}
        parts = tuple(map(Parts.of, mixture.experts))
        assert len(gatings) == 1 and len({of_expert.shapes for of_expert in parts}) == 1, "experts of one kind"
        (gating,) = gatings
        assert gating is None or isinstance(gating, Clamped)

        weight_EI = parts[0].down_EI
        addresses = [of_expert.addresses for of_expert in parts]
        addresses_X6 = torch.tensor(addresses, dtype=torch.int64, device=weight_EI.device)
        tiles = tiles or (FLOAT32 if weight_EI.dtype == torch.float32 else NARROW)
        return cls(mixture.router, mixture.experts, mixture.shared, parts, addresses_X6, gating, tiles)

    def __call__(self, x_NE: Tensor, passes: Passes) -> Tensor:
        """The weighted sum of each token's experts, and the shared one; see Share."""
        x_TE = x_NE.contiguous()
        (num_tokens, hidden), out_TE = x_TE.shape, torch.empty_like(x_TE)
        if not num_tokens:  # no kernel without programs
            return out_TE
        assert x_TE.dtype == self.parts[0].down_EI.dtype and hidden == self.parts[0].down_EI.shape[0]
        chosen_TK, weights_TK = self.router(x_TE)
        each_PE = self._of_pairs(x_TE, chosen_TK.contiguous())

        shared_TE = None if self.shared is None else self.shared(x_TE, passes).contiguous()
        sum_kernel[(num_tokens, triton.cdiv(hidden, PIECE))](
            each_PE,
            weights_TK.contiguous(),
            each_PE if shared_TE is None else shared_TE,
            out_TE,
            HIDDEN=hidden,
            CHOSEN=chosen_TK.shape[1],
            SHARED=shared_TE is not None,
            PIECE=PIECE,
        )
        return out_TE

    def _of_pairs(self, x_TE: Tensor, chosen_TK: Tensor) -> Tensor:
        """What each token's experts give, in the order of `chosen_TK`: (P, E)."""
        tiles, first = self.tiles, self.parts[0]
        hidden, width = first.down_EI.shape
        num_experts, num_pairs = len(self.parts), chosen_TK.numel()
        num_blocks = min(num_pairs, num_pairs // tiles.rows + num_experts)  # see sort_kernel
        pairs_P = torch.empty(num_pairs, dtype=torch.int32, device=x_TE.device)
        blocks_B3 = torch.empty((num_blocks, 3), dtype=torch.int32, device=x_TE.device)
        sort_kernel[(num_experts,)](
            chosen_TK, pairs_P, blocks_B3, num_pairs, ROWS=tiles.rows, LANES=SORTED, num_warps=SORTING_WARPS
        )

        inner_PI, each_PE = x_TE.new_empty((num_pairs, width)), x_TE.new_empty((num_pairs, hidden))
        table = self.addresses_X6, pairs_P, blocks_B3
        sizes = {"HIDDEN": hidden, "WIDTH": width, "ROWS": tiles.rows, "COLUMNS": tiles.columns, "STEP": tiles.step}
        launch = {"num_warps": tiles.warps, "num_stages": tiles.stages}
        gate_kernel[(triton.cdiv(width, tiles.columns), num_blocks)](
            x_TE,
            *table,
            inner_PI,
            CHOSEN=chosen_TK.shape[1],
            LIMIT=0.0 if self.gating is None else self.gating.limit,
            ALPHA=0.0 if self.gating is None else self.gating.alpha,
            BIAS=first.gate_bias_I is not None,
            **sizes,
            **launch,
        )
        down_kernel[(triton.cdiv(hidden, tiles.columns), num_blocks)](
            inner_PI, *table, each_PE, BIAS=first.down_bias_E is not None, **sizes, **launch
        )
        return each_PE


def _sort_for_experts(
    chosen_ptr: tl.tensor,
    pairs_ptr: tl.tensor,
    blocks_ptr: tl.tensor,
    num_pairs: tl.tensor,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Program e writes the pairs of expert e to their places, and its blocks, some of which may have no pairs.

    An expert whose pairs are [first, end) among the sorted ones has the blocks from min(first, first // ROWS + e) on,
    up to those of the next expert. These are enough: ROWS pairs more are a block more, and so is each expert.
    """
    expert = tl.program_id(0)
    lane = tl.arange(0, LANES)
    before = tl.zeros((LANES,), tl.int32)
    own = tl.zeros((LANES,), tl.int32)
    for start in range(0, num_pairs, LANES):
        chosen = tl.load(chosen_ptr + start + lane, mask=start + lane < num_pairs, other=1 << 30)
        before += (chosen < expert).to(tl.int32)
        own += (chosen == expert).to(tl.int32)
    first = tl.sum(before, 0)
    end = first + tl.sum(own, 0)

    place = first
    for start in range(0, num_pairs, LANES):
        chosen = tl.load(chosen_ptr + start + lane, mask=start + lane < num_pairs, other=1 << 30)
        is_own = (chosen == expert).to(tl.int32)
        tl.store(pairs_ptr + place + tl.cumsum(is_own, 0) - 1, start + lane, mask=is_own != 0)
        place += tl.sum(is_own, 0)

    block = tl.minimum(first, first // ROWS + expert)
    next_block = tl.minimum(end, end // ROWS + expert + 1)
    for start in range(block, next_block, LANES):
        is_block = start + lane < next_block
        fact_ptr = blocks_ptr + (start + lane) * NUM_FACTS
        begin = first + (start + lane - block) * ROWS
        tl.store(fact_ptr, expert, mask=is_block)
        tl.store(fact_ptr + 1, begin, mask=is_block)
        tl.store(fact_ptr + 2, tl.minimum(end - begin, ROWS), mask=is_block)


def _numbers_at(addresses_ptr: tl.tensor, expert: tl.tensor, part: tl.constexpr, like_ptr: tl.tensor) -> tl.tensor:
    """Where a part of an expert begins, of numbers like those of `like_ptr`."""
    address = tl.load(addresses_ptr + expert * NUM_PARTS + part)
    return tl.multiple_of(address.to(like_ptr.dtype), ALIGNED)


_at: Any = triton.jit(_numbers_at)


def _gate_of_experts(
    x_ptr: tl.tensor,
    addresses_ptr: tl.tensor,
    pairs_ptr: tl.tensor,
    blocks_ptr: tl.tensor,
    inner_ptr: tl.tensor,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    CHOSEN: tl.constexpr,
    LIMIT: tl.constexpr,
    ALPHA: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    """Intermediate values of the pairs as they are sorted. With a LIMIT the gate is that of Clamped."""
    fact_ptr = blocks_ptr + tl.program_id(1) * NUM_FACTS
    expert, begin, count = tl.load(fact_ptr), tl.load(fact_ptr + 1), tl.load(fact_ptr + 2)
    if count <= 0:
        return

    row_R = tl.arange(0, ROWS)
    is_row_R1 = (row_R < count)[:, None]
    pair_R = tl.load(pairs_ptr + begin + row_R, mask=row_R < count, other=0)
    column_C = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_column_C = column_C < WIDTH
    input_S = tl.arange(0, STEP)
    x_RS = x_ptr + (pair_R // CHOSEN).to(tl.int64)[:, None] * HIDDEN + input_S[None, :]
    at_SC = column_C[None, :] * HIDDEN + input_S[:, None]
    gate_SC = _at(addresses_ptr, expert, 0, x_ptr) + at_SC
    up_SC = _at(addresses_ptr, expert, 1, x_ptr) + at_SC

    gate_RC = tl.zeros((ROWS, COLUMNS), tl.float32)
    up_RC = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, HIDDEN, STEP):
        is_input_S = start + input_S < HIDDEN
        mask_SC = is_input_S[:, None] & is_column_C[None, :]
        x = tl.load(x_RS + start, mask=is_row_R1 & is_input_S[None, :], other=0.0)
        gate_RC = tl.dot(x, tl.load(gate_SC + start, mask=mask_SC, other=0.0), gate_RC, input_precision="ieee")
        up_RC = tl.dot(x, tl.load(up_SC + start, mask=mask_SC, other=0.0), up_RC, input_precision="ieee")

    if BIAS:
        gate_bias_ptr, up_bias_ptr = _at(addresses_ptr, expert, 3, x_ptr), _at(addresses_ptr, expert, 4, x_ptr)
        gate_RC += tl.load(gate_bias_ptr + column_C, mask=is_column_C, other=0.0).to(tl.float32)[None, :]
        up_RC += tl.load(up_bias_ptr + column_C, mask=is_column_C, other=0.0).to(tl.float32)[None, :]
    if LIMIT > 0:
        gate_RC = tl.where(gate_RC > LIMIT, LIMIT, gate_RC)  # NaN stays NaN
        up_RC = tl.where(up_RC > LIMIT, LIMIT, tl.where(up_RC < -LIMIT, -LIMIT, up_RC))
        inner_RC = (up_RC + 1.0) * (gate_RC / (1.0 + tl.exp(-gate_RC * ALPHA)))
    else:
        inner_RC = gate_RC / (1.0 + tl.exp(-gate_RC)) * up_RC

    out_RC = inner_ptr + (begin + row_R).to(tl.int64)[:, None] * WIDTH + column_C[None, :]
    tl.store(out_RC, inner_RC.to(inner_ptr.dtype.element_ty), mask=is_row_R1 & is_column_C[None, :])


def _down_of_experts(
    inner_ptr: tl.tensor,
    addresses_ptr: tl.tensor,
    pairs_ptr: tl.tensor,
    blocks_ptr: tl.tensor,
    each_ptr: tl.tensor,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    """What each pair's expert gives, in the order that pairs had before they were sorted."""
    fact_ptr = blocks_ptr + tl.program_id(1) * NUM_FACTS
    expert, begin, count = tl.load(fact_ptr), tl.load(fact_ptr + 1), tl.load(fact_ptr + 2)
    if count <= 0:
        return

    row_R = tl.arange(0, ROWS)
    is_row_R1 = (row_R < count)[:, None]
    pair_R = tl.load(pairs_ptr + begin + row_R, mask=row_R < count, other=0)
    column_C = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_column_C = column_C < HIDDEN
    input_S = tl.arange(0, STEP)
    inner_RS = inner_ptr + (begin + row_R).to(tl.int64)[:, None] * WIDTH + input_S[None, :]
    weight_SC = _at(addresses_ptr, expert, 2, inner_ptr) + column_C[None, :] * WIDTH + input_S[:, None]

    out_RC = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, WIDTH, STEP):
        is_input_S = start + input_S < WIDTH
        inner = tl.load(inner_RS + start, mask=is_row_R1 & is_input_S[None, :], other=0.0)
        weight = tl.load(weight_SC + start, mask=is_input_S[:, None] & is_column_C[None, :], other=0.0)
        out_RC = tl.dot(inner, weight, out_RC, input_precision="ieee")
    if BIAS:
        bias_ptr = _at(addresses_ptr, expert, 5, inner_ptr)
        out_RC += tl.load(bias_ptr + column_C, mask=is_column_C, other=0.0).to(tl.float32)[None, :]

    each_RC = each_ptr + pair_R.to(tl.int64)[:, None] * HIDDEN + column_C[None, :]
    tl.store(each_RC, out_RC.to(each_ptr.dtype.element_ty), mask=is_row_R1 & is_column_C[None, :])


def _sum_of_experts(
    each_ptr: tl.tensor,
    weights_ptr: tl.tensor,
    shared_ptr: tl.tensor,
    out_ptr: tl.tensor,
    HIDDEN: tl.constexpr,
    CHOSEN: tl.constexpr,
    SHARED: tl.constexpr,
    PIECE: tl.constexpr,
) -> None:
    """`each_ptr` is (T, K, E), `weights_ptr` (T, K): the experts of a token are in their order."""
    token = tl.program_id(0).to(tl.int64)
    column_N = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    is_column_N = column_N < HIDDEN
    total_N = tl.zeros((PIECE,), tl.float32)
    for index in range(CHOSEN):
        pair = token * CHOSEN + index
        result_N = tl.load(each_ptr + pair * HIDDEN + column_N, mask=is_column_N, other=0.0)
        total_N += result_N.to(tl.float32) * tl.load(weights_ptr + pair)
    if SHARED:
        total_N += tl.load(shared_ptr + token * HIDDEN + column_N, mask=is_column_N, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * HIDDEN + column_N, total_N.to(out_ptr.dtype.element_ty), mask=is_column_N)


sort_kernel: Any = triton.jit(_sort_for_experts, do_not_specialize=["num_pairs"])  # it changes while a worker serves
gate_kernel: Any = triton.jit(_gate_of_experts)
down_kernel: Any = triton.jit(_down_of_experts)
sum_kernel: Any = triton.jit(_sum_of_experts)
