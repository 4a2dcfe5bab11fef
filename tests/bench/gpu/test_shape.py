"""What Qwen3-8B's shape weighs, reads and computes; and that the model of that kind computes at all."""

import pytest
import torch

from bench.gpu.shape import (
    QWEN3_8B,
    TINY,
    WithoutPrompts,
    config_of,
    decode_bytes,
    kv_bytes,
    layer_weights,
    prefill_flops,
    product_weights,
    prompt_input,
    random_runner,
    run_again,
    step_limits,
)  # fmt: skip
from bench.gpu.timing import Limits
from model.paged_kv import PagedKv
from protocol.kv_layout import KvLayout


def test_the_shape_is_of_eight_billion_weights() -> None:
    config = config_of(QWEN3_8B)
    weights = config.num_layers * layer_weights(config) + 2 * config.vocab_size * config.hidden_size
    assert layer_weights(config) == 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 12288
    assert 8.1e9 < weights < 8.3e9


def test_a_decode_reads_every_weight_once_and_each_context() -> None:
    config, layout = config_of(TINY), KvLayout.uniform(2, 2, 16, 16, "bfloat16")
    products = 2 * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128) + 512 * 64
    of_one_token = 2 * 2 * 2 * 16 * 2  # layers, K and V, heads, head size, bytes
    assert decode_bytes(config, layout, 3, 10) == (products + 3 * 64) * 2 + 3 * 10 * of_one_token


def test_the_least_time_of_a_step_is_told_from_bytes_and_operations() -> None:
    config, layout = config_of(TINY), KvLayout.uniform(2, 2, 16, 16, "bfloat16")
    weights, attended = product_weights(config), 4 * 3 * 10 * 4 * 16 * 2
    read = decode_bytes(config, layout, 3, 10)
    assert weights == 2 * layer_weights(config) + 512 * 64

    slow_memory = step_limits(config, layout, 3, 10, Limits(copy_bytes_s=10.0, product_flops_s=1e12))
    assert slow_memory.bytes_s == read / 10
    assert slow_memory.operations_s == pytest.approx((2 * weights * 3 + attended) / 1e12)
    assert slow_memory.roofline_s == (weights * 2 + kv_bytes(layout, 3, 10)) / 10  # no row of the embedding

    slow_units = step_limits(config, layout, 3, 10, Limits(copy_bytes_s=1e12, product_flops_s=10.0))
    assert slow_units.roofline_s == pytest.approx(slow_units.operations_s)
    assert slow_units.operations_s == pytest.approx((2 * weights * 3 + attended) / 10)


def test_a_prompt_computes_products_for_each_token_and_attention_for_each_pair() -> None:
    config = config_of(TINY)
    attention = 4 * (5 * 6 / 2) * 4 * 16 * 2
    assert prefill_flops(config, 5) == 2 * 5 * 2 * layer_weights(config) + attention + 2 * 512 * 64


def test_decodes_are_computed_and_prompts_are_not() -> None:
    plain = random_runner(TINY, "cpu", 16)
    runner = WithoutPrompts(plain, run_again)
    kv = PagedKv(runner.kv_layout(16), 4)
    prompt = prompt_input(20, 0, 16, 512, torch.device("cpu"))
    assert plain.forward(prompt, kv).abs().max() > 0
    before = kv.device_bytes.clone()
    assert runner.forward(prompt, kv).shape == (1, 512) and runner.forward(prompt, kv).abs().max() == 0
    assert torch.equal(kv.device_bytes, before)
