"""The size of KV as a pure decision over invented machines."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.fake import FakeRunner
from model.kv_allocation import allocate_kv
from model.kv_sizing import SAFETY_SHARE, KvBudget, activation_bytes, choose_kv_size
from model.runner import ModelRunner
from protocol.errors import ConfigError
from protocol.kv_layout import KvLayout
from tests.checkpoints import make_checkpoint

LAYOUT = KvLayout(num_layers=4, num_kv_heads=2, head_dim=32, page_size=16, dtype="float32")
PAGE = LAYOUT.page_bytes * 4
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


def test_what_limits_is_named() -> None:
    assert size(GIB) == (int(GIB * 0.9) // PAGE, "memory")
    assert size(GIB, running=10) == (10 * 16 + 1, "demand")
    assert size(GIB, total=1000) == (1000 // 16 + 1, "max_total_tokens")
    assert size(GIB, total=1 << 40)[1] == "memory"


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
        assert left < workers * 18 * PAGE or (total is not None and total < 256)
        return
    assert workers * (pages * PAGE + activations) + weights <= available
    assert 16 < pages <= running * 16 + 1 and (total is None or (pages - 1) * 16 <= total)


def test_not_even_one_context() -> None:
    with pytest.raises(ConfigError, match="one context of 100000 tokens takes 195 MiB, but 90 MiB are left"):
        size(100 << 20, context=100_000)
    with pytest.raises(ConfigError, match="max_total_tokens: got 255, expected at least 256"):
        size(GIB, total=255)
    assert size(GIB, total=256) == (17, "max_total_tokens")


def test_activations_grow_with_what_is_computed(tmp_path: Path) -> None:
    config = FakeRunner(vocab_size=1000, num_layers=1).config
    small = activation_bytes(config, "float32", tokens_per_forward=16, logit_rows=1)
    assert 0 < small < activation_bytes(config, "float32", tokens_per_forward=32, logit_rows=1)
    assert activation_bytes(config, "float32", tokens_per_forward=16, logit_rows=11) - small >= 10 * 1000 * 4 * 4
    assert activation_bytes(config, "bfloat16", tokens_per_forward=16, logit_rows=1) < small


def test_a_tiny_model_takes_what_it_can_use(tmp_path: Path) -> None:
    runner = ModelRunner.load(make_checkpoint(tmp_path, "qwen3"), device="cpu")
    kv, got = allocate_kv(runner, 16, workers_on_host=2, max_running_requests=3, tokens_per_forward=64)
    assert got.limited_by == "demand" and kv.num_pages == got.num_pages == 3 * 512 // 16 + 1
    assert got.num_tokens(kv.layout) == 3 * 512
