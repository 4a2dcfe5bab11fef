"""The step's inputs are those of a server's graphs, and attention that is wrong is a fault."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bench.gpu import kernel_attention
from bench.gpu.kernel_attention import by_torch, decodes, decodes_in, prompt
from bench.gpu.kernel_sides import Setup
from bench.gpu.shape import TINY, attention_flops, config_of
from bench.gpu.step_kernels import SIZES
from bench.gpu.timing import Limits
from bench.records import Goal
from bench.step.decoding import PAGE_SIZE
from model.attention_cpu import CpuAttention
from model.graphs import Lanes
from model.scoring import PLAIN, Scoring
from tests.bench.gpu.sheets import faults_in, rows_in, sheet_in
from tests.model.attention_cases import plain_attention

CPU = torch.device("cpu")
AT = Setup(config_of(TINY), CPU, SIZES["cpu"], Limits(1e9, 1e9))


@given(st.integers(1, 5), st.integers(1, 100), st.integers(0, 4))
def test_decodes_are_those_that_a_graph_for_longer_contexts_is_filled_with(batch: int, context: int, more: int) -> None:
    used = -(-context // PAGE_SIZE)
    pages_BP = 1 + torch.randperm(batch * used).view(batch, used)
    decodes = decodes_in(pages_BP, context, used + more)
    lanes = Lanes(batch, used + more, PAGE_SIZE, CPU)
    lanes.fill(decodes_in(pages_BP, context, used), batch)
    wanted = lanes.first(batch)
    assert decodes.max_decode_seq_len == wanted.max_decode_seq_len == (used + more) * PAGE_SIZE
    for name in ("positions_T", "page_table_BP", "seq_lens_B"):
        assert torch.equal(getattr(decodes, name), getattr(wanted, name)), name
    assert decodes.seq_lens_B.tolist() == [context] * batch


@pytest.mark.parametrize("batch, context", [(1, 1), (3, 16), (2, 50)])
def test_the_attention_to_compare_with_is_that_of_the_formula(batch: int, context: int) -> None:
    used = -(-context // PAGE_SIZE)
    pages_BP = 1 + torch.randperm(batch * used).view(batch, used)
    kv_layer, q_BHD = torch.randn(1 + batch * used, 2, PAGE_SIZE, 2, 16), torch.randn(batch, 4, 16)
    attended = by_torch(q_BHD, kv_layer, pages_BP, context)
    for row, own_BHD in enumerate(attended):
        k_SKD, v_SKD = (kv_layer[pages_BP[row], side].flatten(0, 1)[:context] for side in (0, 1))
        torch.testing.assert_close(own_BHD, plain_attention(q_BHD[row : row + 1], k_SKD, v_SKD)[0])


def test_a_prompt_computes_two_products_for_each_pair_and_head() -> None:
    heads, head_dim = AT.config.num_heads, AT.config.head_dim
    pairs = sum(position + 1 for position in range(7))
    assert attention_flops(AT.config, 7) == pairs * heads * 2 * (2 * head_dim)


class Wrong(CpuAttention):
    """Attends as a CPU does, and multiplies the result by a factor."""

    calls = 0

    def attend(self, q_THD: Tensor, kv_layer: Tensor, plan: Any, scoring: Scoring = PLAIN) -> Tensor:
        self.calls += 1
        out_THD = super().attend(q_THD, kv_layer, plan, scoring)
        return out_THD * self.factor(plan)

    def factor(self, plan: Any) -> float:
        return 1.1


class WrongIfLonger(Wrong):
    """The second call of the comparison is that of the longest context."""

    def factor(self, plan: Any) -> float:
        return 1.5 if self.calls == 2 else 1.0


class NotANumber(Wrong):
    def factor(self, plan: Any) -> float:
        return float("nan")


def test_right_attention_has_a_row_and_no_fault(tmp_path: Path) -> None:
    sheet = sheet_in(tmp_path)
    decodes(sheet, AT, *SIZES["cpu"].judged_share)
    prompt(sheet, AT, 33)
    records = sheet.folder.records()
    assert faults_in(sheet) == []
    assert [row.table for row in rows_in(sheet)] == [
        "Attention of decodes",
        "Attention of a prompt",
    ]
    words = [record.words for record in records if isinstance(record, Goal)]
    assert words == ["batch 1, context 40: longest / tight", "batch 1, context 40: share of a device copy"]


@pytest.mark.parametrize(
    "kind, reason",
    [
        (Wrong, "attention is off by 0."),
        (NotANumber, "off by inf"),
        (WrongIfLonger, "longest context gives other bits"),
    ],
)
def test_wrong_decodes_are_a_fault_and_their_row_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Wrong], reason: str
) -> None:
    own = kind(torch.float32)
    monkeypatch.setattr(kernel_attention, "attention_of", lambda *_: own)
    sheet = sheet_in(tmp_path)
    decodes(sheet, AT, 6, 20)
    assert own.calls > 2 and reason in faults_in(sheet)[0]
    assert [row.table for row in rows_in(sheet)] == ["Attention of decodes"]
