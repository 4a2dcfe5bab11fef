"""Products in C: every size, the same bits beside any rows and on any number of threads."""

import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from model.cpu_build import find_compiler
from model.cpu_kernels import CpuKernels, load_kernels
from model.cpu_products import CpuLinear, Threads, in_place, pack_bfloat16
from model.fake import FakeRunner
from model.linear import Linear
from model.passes import TorchPasses

CONFIG = FakeRunner().config
KINDS = {  # the dtype of rows, whether weights are packed, and what the compiler is told
    "float32": (torch.float32, True, ""),
    "bfloat16": (torch.bfloat16, True, ""),
    "bfloat16 without tiles": (torch.bfloat16, True, "-DNO_TILES"),
    "float32 in place": (torch.float32, False, ""),
    "float32 in place, half as wide": (torch.float32, False, "-mno-avx512f"),
    "float32 in place, without instructions": (torch.float32, False, "-mno-avx512f -mno-fma"),
    "bfloat16 in place": (torch.bfloat16, False, ""),
}


@dataclass(frozen=True)
class Kind:
    """One kind of product on this CPU."""

    dtype: torch.dtype
    is_packed: bool
    kernels: CpuKernels

    def packed(self, linear: Linear, threads: int = 1) -> CpuLinear:
        """`linear` for rows of this kind."""
        if not self.is_packed:
            own = Linear(linear.weight_OI.to(self.dtype), linear.bias_O)
            return in_place(own, self.kernels.library, FixedThreads(threads))
        return pack_bfloat16(linear, self.kernels.library, FixedThreads(threads), self.dtype)

    def rows(self, rows: int, inputs: int) -> Tensor:
        """Random rows."""
        return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows * inputs)).to(self.dtype)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    dtype, is_packed, told = KINDS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        if told:
            patch.setenv("CC", f"{find_compiler()[0]} {told}")
        kernels = load_kernels(CONFIG, dtype, "bfloat16")
    if not kernels.has_products and (is_packed or dtype != torch.float32):
        pytest.skip("this CPU has no instructions for them")
    return Kind(dtype, is_packed, kernels)


SIZES = [  # (outputs, inputs): of one panel, of several, and none that is whole
    (1, 1), (1, 2), (3, 5), (15, 7), (16, 8), (17, 31), (31, 64), (33, 3), (48, 96), (63, 33), (64, 512), (65, 100),
    (79, 511), (80, 2), (129, 257), (512, 64),
]  # fmt: skip


class FixedThreads(Threads):
    """As many threads as a test says."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self.num = num

    def for_rows(self, rows: int) -> int:
        """See Threads."""
        return self.num


def random_linear(outputs: int, inputs: int, *, bias: bool = False) -> Linear:
    generator = torch.Generator().manual_seed(outputs * 1000 + inputs)
    weight = torch.randn(outputs, inputs, generator=generator).bfloat16()
    return Linear(weight, torch.randn(outputs, generator=generator) if bias else None)


@pytest.mark.parametrize("outputs, inputs", SIZES)
def test_every_number_of_rows_gives_the_bits_of_each_row_alone(kind: Kind, outputs: int, inputs: int) -> None:
    linear = random_linear(outputs, inputs, bias=outputs % 2 == 1)
    x, residual = kind.rows(50, inputs), kind.rows(50, outputs)
    one = kind.packed(linear)
    alone = torch.cat([one(x[row : row + 1]) for row in range(50)])
    added = torch.cat([one.added_to(residual[row : row + 1], x[row : row + 1]) for row in range(50)])

    exact = x.double() @ linear.weight_OI.double().T + (0 if linear.bias_O is None else linear.bias_O.double())
    scale = (x.abs().double() @ linear.weight_OI.abs().double().T).max()
    for found, expected in ((alone, exact), (added, exact + residual.double())):
        rounding = torch.finfo(kind.dtype).eps / 2 * expected.abs()  # once
        assert bool(((found.double() - expected).abs() <= 1e-6 * scale + rounding).all())
    if kind.dtype == torch.float32:  # bfloat16 rounds once, so not the product and then the sum
        assert float((alone.double() - exact).abs().max()) <= 1e-6 * float(scale)
        assert torch.equal(added, alone + residual)
    for rows in range(51):
        for threads in (1, 2, 3):
            product = kind.packed(linear, threads)
            assert torch.equal(product(x[:rows]), alone[:rows])
            assert torch.equal(product.added_to(residual[:rows], x[:rows]), added[:rows])


@pytest.mark.parametrize("rows", [127, 128, 400, 600])
def test_more_rows_than_a_part_has(kind: Kind, rows: int) -> None:
    linear = random_linear(96, 700)
    x, residual = kind.rows(rows, 700), kind.rows(rows, 96)
    one = kind.packed(linear)
    added = torch.cat([one.added_to(residual[row : row + 1], x[row : row + 1]) for row in range(rows)])
    for threads in (1, 3):
        assert torch.equal(kind.packed(linear, threads).added_to(residual, x), added)


def test_a_product_with_a_norm_is_the_sum_and_its_norm(kind: Kind) -> None:
    passes, weight = TorchPasses(1, 96, 1e-6), kind.rows(1, 96)[0]
    for rows in (0, 1, 5):
        product, x, residual = kind.packed(random_linear(96, 70)), kind.rows(rows, 70), kind.rows(rows, 96)
        found, expected = product.added_norm(residual, x, passes, weight), product.added_to(residual, x)
        assert torch.equal(found[0], expected)
        assert torch.equal(found[1], passes.rms_norm(expected, weight))


def test_more_weights_than_the_cache_holds(kind: Kind) -> None:
    linear, x = random_linear(400, 2048), kind.rows(20, 2048)
    alone = torch.cat([kind.packed(linear)(x[row : row + 1]) for row in range(20)])
    assert all(torch.equal(kind.packed(linear, threads)(x), alone) for threads in (1, 2))


def test_the_residual_may_be_the_output(kind: Kind) -> None:
    """As in the layers of a decode: also where a tile of rows starts among those of the one before."""
    product = kind.packed(random_linear(40, 33))
    for rows in (1, 16, 17, 40):
        x, residual = kind.rows(rows, 33), kind.rows(rows, 40)
        expected = product.added_to(residual, x)
        at = residual.data_ptr()
        product.library.product(product.in_c, x.data_ptr(), at, at, rows, 1)
        assert torch.equal(residual, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("row", [4, 20, 38])
def test_what_is_not_finite_stays_in_its_row(kind: Kind, value: float, row: int) -> None:
    linear, x = random_linear(40, 33), kind.rows(39, 33)
    healthy = kind.packed(linear)(x)
    x[row, 32] = value
    y = kind.packed(linear)(x)
    assert not y[row].isfinite().any()
    others = [other for other in range(39) if other != row]
    assert torch.equal(y[others], healthy[others])


def test_what_follows_the_last_input_is_not_read(kind: Kind) -> None:
    """An odd number of inputs: the weight beside the last one is 0, and 0 times NaN would be NaN."""
    linear = random_linear(20, 5)
    wide = torch.full((7, 6), float("nan"), dtype=kind.dtype)
    x = wide.flatten()[:35].view(7, 5)
    x.copy_(kind.rows(7, 5))
    assert kind.packed(linear)(x).isfinite().all()


def test_a_weight_is_rounded_once(kind: Kind) -> None:
    """One that bfloat16 cannot hold is rounded to it; large ones and signs are kept. Instructions for bfloat16 take
    numbers below 1e-38 for 0."""
    if not kind.is_packed:
        pytest.skip("weights in place are not rounded")
    smallest = 1e-40 if kind.dtype == torch.float32 else 1.5e-38
    values = torch.tensor([[1 + 2**-9, 3.0e38, -0.0, smallest]])
    product = kind.packed(Linear(values))
    one_each = torch.eye(4, dtype=kind.dtype)
    found = torch.cat([product(row[None]) for row in one_each])[:, 0]
    assert torch.equal(found, values[0].bfloat16().to(kind.dtype))


def test_memory_that_is_not_contiguous(kind: Kind) -> None:
    linear, x = random_linear(24, 10), kind.rows(10, 8).T
    columns = Linear(torch.cat((linear.weight_OI, linear.weight_OI), dim=1).to(kind.dtype)[:, 10:])
    product = kind.packed(columns)
    assert torch.equal(product(x), kind.packed(linear)(x.contiguous()))
    if kind.is_packed:
        assert product.weight.numel() == 2 * 16 * 32, "two bytes a weight, padded to whole panels and steps"
    else:
        assert product.weight.data_ptr() == columns.weight_OI.data_ptr(), "it is no copy"


def test_threads_by_rows() -> None:
    threads, before = Threads(alone_up_to=4), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert [threads.for_rows(rows) for rows in (0, 1, 4, 5, 99)] == [1, 1, 1, 3, 3]
        assert Threads().for_rows(1) == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_a_cpu_without_the_instructions_has_no_products(
    tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", f"{find_compiler()[0]} -DNO_PRODUCTS")
    for dtype in (torch.float32, torch.bfloat16):
        assert not load_kernels(CONFIG, dtype, "bfloat16").has_products


TEAM = """
import ctypes, os, sys, threading
from model.cpu_build import built_library
library = ctypes.CDLL(str(built_library(["-DHEAD_DIM=16"])))
PART = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)

def check(times, threads):
    for parts in [*range(9), 64] * times:
        done = []
        library.team_run(PART(lambda _work, index: done.append(index)), None, ctypes.c_int64(parts), threads)
        assert sorted(done) == list(range(parts)), (parts, sorted(done))

for threads in (1, 2, 3, 5):
    check(20, threads)
callers = [threading.Thread(target=check, args=(50, 3)) for _ in range(3)]
for caller in callers: caller.start()
for caller in callers: caller.join()
child = os.fork()
if child == 0:
    check(20, 3)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("each part once")
"""


def test_each_part_of_a_job_runs_once() -> None:
    """On one thread or several, for callers at the same time, and in a forked child, which has no helpers."""
    ran = subprocess.run([sys.executable, "-c", TEAM], capture_output=True, text=True, check=False, timeout=120)
    assert (ran.stdout, ran.returncode) == ("each part once\n", 0), ran.stderr
