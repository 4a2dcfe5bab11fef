"""torch's varlen attention: the probe, and the arguments, by a stand-in kernel with the same meaning on the CPU."""

from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention_varlen import VarlenAttention, find_kernel, reads_block_tables, trial
from protocol.errors import ConfigError
from protocol.kv_layout import LayerLayout
from tests.model.attention_cases import make_case, paged_kernel
from tests.model.attention_contract import CASES, WINDOW_CASES, ContractCase, check_a_graph_can_be_made, check_case

LAYOUT = LayerLayout(2, 16, 4, "float32")


def make(num_heads: int, layout: LayerLayout) -> VarlenAttention:
    return VarlenAttention(paged_kernel)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("case", (*CASES, *WINDOW_CASES), ids=str)
def test_the_contract(case: ContractCase, page_size: int) -> None:
    check_case(make, case, page_size)


def test_a_graph_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    check_a_graph_can_be_made(make, monkeypatch)


def test_a_tree_mask_is_refused_by_name() -> None:
    case = make_case((), (31, 2), page_size=4, trees=((20, 5), (2, 0)))
    with pytest.raises(ConfigError) as caught:
        make(4, case.layout).plan(case.inp, case.layout)
    why = "but it has no tree mask, which --speculative-eagle-topk above 1 needs"
    assert caught.value.message == f"--attention-backend: got 'varlen', {why}"


def test_probe_reads_the_signature() -> None:
    def without_tables(q: Tensor, k: Tensor, v: Tensor, *, enable_gqa: bool = False) -> Tensor:
        return q

    assert reads_block_tables(paged_kernel) and not reads_block_tables(without_tables)
    kernel = find_kernel()
    assert kernel is None or reads_block_tables(kernel)


def test_trial_believes_a_right_kernel_only() -> None:
    def refusing(*args: Any, num_splits: int = 0, **kwargs: Any) -> Tensor:
        raise RuntimeError("page size must be a multiple of 256")

    def wrong(*args: Any, **kwargs: Any) -> Tensor:
        return paged_kernel(*args, num_splits=1, **kwargs) + 1

    device = torch.device("cpu")
    assert trial(VarlenAttention(paged_kernel), LAYOUT, 4, device) is None
    assert "multiple of 256" in str(trial(VarlenAttention(refusing), LAYOUT, 4, device))
    assert "off by 1" in str(trial(VarlenAttention(wrong), LAYOUT, 4, device))


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [16, 256])
def test_on_the_device_it_is_right_or_refused(page_size: int) -> None:
    kernel = find_kernel()
    if kernel is None:
        pytest.skip("this torch has no varlen_attn with block tables")
    backend = VarlenAttention(kernel)
    trouble = trial(backend, LayerLayout(2, 64, page_size, "bfloat16"), 4, torch.device("cuda"))
    assert trouble is None or "refuses pages" in trouble
    for case in CASES if trouble is None else ():
        if case.head_dim % 8 == 0:  # as that kernel says
            check_case(lambda num_heads, layout: backend, case, page_size, "cuda", "bfloat16")
