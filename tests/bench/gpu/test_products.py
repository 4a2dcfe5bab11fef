"""The products of a decode step are all its weights, and take at least what memory or the matrix units take."""

import pytest
import torch

from bench.gpu.products import products_of
from bench.gpu.shape import TINY, product_weights, random_runner
from bench.gpu.timing import Limits


def test_they_have_every_weight_of_a_step_once_and_are_computed() -> None:
    runner = random_runner(TINY, "cpu", 16)
    products = products_of(runner.decoder, runner.config)
    assert [product.name for product in products] == ["q, k, v", "attention's output", "gate and up", "down", "head"]
    assert sum(product.weights for product in products) == product_weights(runner.config)
    for product in products:
        results = [linear(torch.randn(3, product.inputs).bfloat16()) for linear in product.linears]
        widths = [sum(part.shape[-1] for part in (y if isinstance(y, tuple) else (y,))) for y in results]
        assert widths == [product.outputs] * (1 if product.name == "head" else 2)


@pytest.mark.parametrize("rows, wanted", [(1, 4.0), (4, 4.0), (16, 16.0)])
def test_the_floor_is_the_slower_of_memory_and_matrix_units(rows: int, wanted: float) -> None:
    runner = random_runner(TINY, "cpu", 16)
    head = products_of(runner.decoder, runner.config)[-1]
    limits = Limits(copy_bytes_s=head.weights * 2 / 4.0, product_flops_s=2.0 * head.weights)
    assert head.floor_s(rows, 2, limits) == pytest.approx(wanted)
