"""The sampler in Triton: interpreted, compiled for a GPU that is not there, and run where there is one."""

from importlib.util import find_spec

import pytest
import torch

from model.sampler import TorchDraws, draws_of, sample_scored
from model.sampling_input import GREEDY_BELOW, Drawn, SamplingInput, weight_scale
from tests.compiled import cubin_bytes
from tests.interpreting import check_interpreted
from tests.model.driving import random_logits, sampling
from tests.model.sampler_cases import VOCABS, check_bad_rows, check_frequencies, check_grammars, check_mixes
from tests.selecting import broad

CPU, GPU = torch.device("cpu"), torch.device("cuda")
COLUMNS = {
    **dict.fromkeys(("temperature_ptr", "top_p_ptr", "min_p_ptr"), "*fp32"),
    **dict.fromkeys(("top_k_ptr", "seed_ptr", "choice_ptr", "position_ptr"), "*i64"),
}
NUMBERS = {"room", "is_ruled", "num_ruled", "num_words"}


@pytest.mark.parametrize("vocab_size", VOCABS)
def test_cases_hold_for_torchs_own(vocab_size: int) -> None:
    check_mixes(TorchDraws(), CPU, vocab_size, 24, exact=True)
    check_grammars(TorchDraws(), CPU, max(vocab_size, 32))


def test_rows_that_are_not_finite_and_frequencies_of_torchs_own() -> None:
    check_bad_rows(TorchDraws(), CPU)
    check_frequencies(TorchDraws(), CPU, 4000)


def test_a_greedy_row_is_drawn_from_its_own_logits_also_beside_others() -> None:
    logits_LV = random_logits(3, 20, 1)
    s = sampling({"temperature": 0.0, "top_k": 3}, {"top_k": 3}, {"temperature": 0.0})
    from_NV = TorchDraws().draw(logits_LV, s).logits_of(torch.tensor([2, 0]))
    assert torch.equal(from_NV, logits_LV[[2, 0]])


class Counted(TorchDraws):
    """Counts its draws."""

    count = 0

    def draw(self, logits_LV: torch.Tensor, s: SamplingInput) -> Drawn:
        self.count += 1
        return super().draw(logits_LV, s)


def test_the_draws_that_a_caller_names_are_used() -> None:
    counted = Counted()
    sample_scored(random_logits(2, 20, 1), sampling({}, {}), draws=counted)
    assert counted.count == 1


def test_a_cpu_and_a_machine_without_triton_have_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(draws_of(CPU)) is TorchDraws
    monkeypatch.setattr("model.sampler.find_spec", lambda _: None)
    assert type(draws_of(GPU)) is TorchDraws


@pytest.mark.slow
def test_a_gpu_has_tritons() -> None:
    pytest.importorskip("triton")
    assert type(draws_of(GPU)).__name__ == "TritonDraws"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the device here")
@pytest.mark.parametrize("part", ["not mix", broad("mix")])
def test_interpreted_cases(part: str) -> None:
    check_interpreted("tests/model/interpreted_sampler_triton.py", "-k", part)


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size", [151_936, 32_001])
def test_compiles_for_a_gpu_that_is_not_there(vocab_size: int) -> None:
    triton = pytest.importorskip("triton")
    from model.sampler_kernels import allow_kernel, draw_kernel  # noqa: PLC0415 - an optional package
    from model.sampler_triton import ALLOWED, RULED, TILES  # noqa: PLC0415

    types = {**COLUMNS, **dict.fromkeys(NUMBERS, "i32")}
    types |= dict.fromkeys(("logits_ptr", "out_ptr", "values_ptr", "limits_ptr"), "*fp32")
    types |= dict.fromkeys(("ids_ptr", "firsts_ptr", "words_ptr"), "*i32")
    types |= dict.fromkeys(("tokens_ptr", "rows_ptr"), "*i64")
    blocks = triton.next_power_of_2(triton.cdiv(vocab_size, TILES.depth * TILES.lanes))
    sizes = {"VOCAB": vocab_size, "SCALE": weight_scale(vocab_size), "GREEDY_BELOW": GREEDY_BELOW}
    sizes |= {"DEPTH": TILES.depth, "LANES": TILES.lanes, "BLOCKS": blocks}
    for kernel, constants in (
        (draw_kernel, sizes),
        (allow_kernel, {"VOCAB": vocab_size, "BLOCK": ALLOWED, "ROWS": RULED}),
    ):
        own = {each.name: types[each.name] for each in kernel.params if each.name in types}
        assert cubin_bytes(kernel, own, constants) > 1000


@pytest.mark.slow
def test_numbers_that_change_while_serving_need_no_other_kernel() -> None:
    """Triton compiles anew for an integer that is 1, or divisible by 16, unless told not to; and for where a column
    begins."""
    pytest.importorskip("triton")
    from model.sampler_kernels import allow_kernel, draw_kernel  # noqa: PLC0415 - an optional package

    columns = {*COLUMNS, "rows_ptr", "words_ptr"}
    for kernel in (draw_kernel, allow_kernel):
        named = {each.name for each in kernel.params}
        assert {each.name for each in kernel.params if each.do_not_specialize} == NUMBERS & named
        assert {each.name for each in kernel.params if each.do_not_specialize_on_alignment} == columns & named


@pytest.mark.gpu
@pytest.mark.parametrize("vocab_size", [*VOCABS, 9000, 151_936])
def test_on_the_device(vocab_size: int) -> None:
    from model.sampler_triton import TritonDraws  # noqa: PLC0415 - must not be imported where it is interpreted

    check_mixes(TritonDraws(), GPU, vocab_size, 64, exact=False)
    check_grammars(TritonDraws(), GPU, max(vocab_size, 32))


@pytest.mark.gpu
def test_rows_that_are_not_finite_and_frequencies_on_the_device() -> None:
    check_bad_rows(draws_of(GPU), GPU)
    check_frequencies(draws_of(GPU), GPU, 20_000)
