"""The size of KV as a pure decision over invented machines."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.kv_sizing import (
    SAFETY_SHARE,
    KvBudget,
    activation_bytes,
    choose_kv_size,
    host_copy_bytes,
    token_flops,
    window_waste,
)
from protocol.errors import ConfigError, MemoryShort
from protocol.kv_layout import KvLayout, LayerGroup
from runtime.model_parts import AttentionConfig, ExpertsConfig, LayerConfig, MlpConfig, RouterConfig
from tests.doubles.hash_model import FakeRunner

LAYOUT = KvLayout.uniform(num_layers=4, num_kv_heads=2, head_dim=32, page_size=16, dtype="float32")
PAGE = LAYOUT.all_page_bytes
GIB = 1 << 30


def size(
    available: int,
    workers: int = 1,
    *,
    weights: int = 0,
    activations: int = 0,
    context: int = 256,
    running: int = 1 << 20,
    total: int | None = None,
) -> tuple[int, str]:
    budget = KvBudget(available, workers, weights, activations)
    got = choose_kv_size(LAYOUT, budget, context_length=context, max_running_requests=running, max_total_tokens=total)
    return got.num_pages, got.limited_by


def test_a_page_takes_bytes_of_every_group_of_layers() -> None:
    both = replace(LAYOUT, groups=(*LAYOUT.groups, LayerGroup(num_layers=2, num_kv_heads=2, head_dim=16)))
    assert both.all_page_bytes == PAGE + PAGE // 4

    got = choose_kv_size(both, KvBudget(GIB, 1, 0, 0), context_length=256, max_running_requests=1 << 20)
    assert got.num_pages == int(GIB * 0.9) // (PAGE + PAGE // 4)
    assert both.pool_bytes(got.num_pages) < GIB


def test_every_page_takes_from_every_memory() -> None:
    """A device that two workers divide, and the host's memory, where four have twins."""

    def pages(device: int, host: int) -> int:
        budgets = KvBudget(device, 2, 0, 0, "cuda:1"), KvBudget(host, 4, 0, 0)
        return choose_kv_size(LAYOUT, *budgets, context_length=256, max_running_requests=1 << 20).num_pages

    assert pages(GIB, 64 * GIB) == int(GIB * 0.9) // 2 // PAGE
    assert pages(64 * GIB, GIB) == int(GIB * 0.9) // 4 // PAGE
    with pytest.raises(ConfigError, match=r"\(0 MiB available to 2 on cuda:1\)"):
        pages(0, GIB)
    with pytest.raises(ConfigError, match=r"\(0 MiB available to 4 on this host\)"):
        pages(GIB, 0)


def test_what_limits_is_named() -> None:
    assert size(GIB) == (int(GIB * 0.9) // PAGE, "memory")
    assert size(GIB, running=10) == (10 * 16 + 1, "demand")
    assert size(GIB, total=1000) == (63 + 1, "max_total_tokens")  # the last page in part
    assert size(GIB, total=1 << 40)[1] == "memory"


def test_demand_is_bounded_unless_a_total_is_asked_for() -> None:
    def pages(context: int, total: int | None = None) -> int:
        got = choose_kv_size(
            LAYOUT,
            KvBudget(GIB, 1, 0, 0),
            context_length=context,
            max_running_requests=10,
            max_total_tokens=total,
            demand_tokens=1000,
        )
        return got.num_pages - 1

    assert pages(64) == 10 * 4
    assert pages(256) == 63  # 1000 tokens, the last page in part
    assert pages(2048) == 128  # one context always
    assert pages(256, total=2000) == 125


@given(
    available=st.integers(0, 64 * GIB),
    workers=st.integers(1, 16),
    weights=st.integers(0, 8 * GIB),
    activations=st.integers(0, GIB),
    running=st.integers(1, 10_000),
    total=st.none() | st.integers(1, 10**7),
)
def test_never_more_than_there_is(
    available: int, workers: int, weights: int, activations: int, running: int, total: int | None
) -> None:
    try:
        pages, _ = size(available, workers, weights=weights, activations=activations, running=running, total=total)
    except ConfigError:
        left = available * (1 - SAFETY_SHARE) - weights - workers * activations
        assert left < workers * 18 * PAGE or (total is not None and total <= 240)
        return
    assert workers * (pages * PAGE + activations) + weights <= available
    assert 16 < pages <= running * 16 + 1 and (total is None or (pages - 1) * 16 < total + 16)


def test_not_even_one_context() -> None:
    """Memory may be free later; a wrong option stays wrong."""
    with pytest.raises(MemoryShort, match="one context of 100000 tokens takes 195 MiB, but 90 MiB are left"):
        size(100 << 20, context=100_000)
    with pytest.raises(
        ConfigError, match="max_total_tokens: got 240, expected at least the context length of 256"
    ) as wrong:
        size(GIB, total=240)
    assert not isinstance(wrong.value, MemoryShort)
    assert size(GIB, total=256) == size(GIB, total=241) == (17, "max_total_tokens")


def test_activations_grow_with_what_is_computed() -> None:
    config = FakeRunner(vocab_size=1000, num_layers=1).config
    small = activation_bytes(config, "float32", tokens_per_forward=16, logit_rows=1)
    assert 0 < small < activation_bytes(config, "float32", tokens_per_forward=32, logit_rows=1)
    assert activation_bytes(config, "float32", tokens_per_forward=16, logit_rows=11) - small >= 10 * 1000 * 4 * 4
    assert activation_bytes(config, "bfloat16", tokens_per_forward=16, logit_rows=1) < small


def test_a_tiny_model_takes_no_more_than_it_can_use() -> None:
    layout = FakeRunner().kv_layout(16)
    got = choose_kv_size(layout, KvBudget(64 * GIB, 2, 0, 0), context_length=4096, max_running_requests=3)
    assert got.limited_by == "demand" and layout.pool_tokens(got.num_pages) == 3 * 4096


def test_host_memory_for_kv_that_is_preempted() -> None:
    budget = KvBudget(8 * GIB, 1, 0, 0)
    assert host_copy_bytes(LAYOUT, 4, 1 << 40, budget) == 4 * GIB
    assert host_copy_bytes(LAYOUT, 4, 33, budget) == 3 * PAGE, "more than all requests together can fill"


@pytest.mark.parametrize("gib, available", [(8, 8 * GIB), (1, GIB), (1, 0)])
def test_host_memory_that_is_not_there_is_refused(gib: int, available: int) -> None:
    with pytest.raises(
        MemoryShort, match=rf"retract_host_gib: got {gib}, .* at most \d+ MiB, which this host"
    ) as caught:
        host_copy_bytes(LAYOUT, gib, 1 << 40, KvBudget(available, 1, 0, 0))
    assert caught.value.param == "retract_host_gib"


def test_host_memory_for_kv_may_be_one_page_and_may_be_all_there_is() -> None:
    budget = KvBudget(8 * GIB, 1, 0, 0)
    layout = KvLayout.uniform(
        num_layers=4, num_kv_heads=2, head_dim=32, page_size=budget.usable_bytes >> 11, dtype="float32"
    )
    assert layout.all_page_bytes == budget.usable_bytes >> 11 << 11
    exact = replace(budget, activation_bytes=budget.usable_bytes - layout.all_page_bytes)
    assert host_copy_bytes(layout, 8, 1, exact) == layout.all_page_bytes == exact.usable_bytes


def test_a_page_larger_than_host_memory_for_it_is_refused() -> None:
    layout = KvLayout.uniform(num_layers=64, num_kv_heads=64, head_dim=128, page_size=4096, dtype="float32")
    with pytest.raises(ConfigError, match="expected at least 16384") as wrong:
        host_copy_bytes(layout, 1, 1 << 40, KvBudget(64 * GIB, 1, 0, 0))
    assert not isinstance(wrong.value, MemoryShort)


def test_operations_of_a_token_are_two_for_each_weight() -> None:
    layers = (LayerConfig(AttentionConfig(4, 2, head_dim=2), MlpConfig(1)),) * 3
    config = replace(FakeRunner().config, layers=layers, hidden_size=8)
    weights = 3 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 1)  # q, k and v, o, and gate, up, down
    assert token_flops(config) == 2 * weights


def test_windows_waste_the_kv_before_them() -> None:
    layers = tuple(LayerConfig(AttentionConfig(4, 2, head_dim=2, window=window), MlpConfig(1)) for window in (0, 24))
    config = replace(FakeRunner().config, layers=layers)
    assert [window_waste(config, tokens) for tokens in (20, 24, 48, 96)] == [0, 0, 0.25, 0.375]


def test_of_experts_those_count_that_a_token_has() -> None:
    """Operations: the router's, those of the chosen experts, and of the shared one."""
    expert = MlpConfig(6, field="moe_intermediate_size")
    feed = ExpertsConfig(16, RouterConfig(3), expert, shared=MlpConfig(5))
    attention = AttentionConfig(4, 2, head_dim=2)
    layers = (LayerConfig(attention, MlpConfig(7)), LayerConfig(attention, feed))
    config = replace(FakeRunner().config, layers=layers, hidden_size=8)
    of_attention = 8 * 8 + 2 * 8 * 4 + 8 * 8
    assert token_flops(config) == 2 * (2 * of_attention + 3 * 8 * 7 + (16 * 8 + 3 * 8 * (3 * 6 + 5)))

    def activations(*layers: LayerConfig) -> int:
        return activation_bytes(replace(config, layers=layers), "float32", tokens_per_forward=10, logit_rows=1)

    dense, mixed = LayerConfig(attention, MlpConfig(3 * 6 + 5)), layers[1]
    scores = activations(mixed) - activations(dense)
    assert 10 * 16 * 8 <= scores <= 10 * 16 * 64, "some numbers for each expert's score"
    assert activations(*layers) == activations(mixed), "the widest feed counts"
