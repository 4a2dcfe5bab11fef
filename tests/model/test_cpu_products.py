"""Products with bfloat16 weights: every size, the same bits beside any rows and on any number of threads."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from model.cpu_build import find_compiler
from model.cpu_kernels import CpuKernels, load_kernels
from model.cpu_products import Bfloat16Linear, Threads, pack_bfloat16
from model.fake import FakeRunner
from model.linear import Linear

CONFIG = FakeRunner().config
KERNELS = load_kernels(CONFIG, torch.float32, "bfloat16")
needs_products = pytest.mark.skipif(not KERNELS.has_products, reason="this CPU has no AVX2 and FMA")

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


def packed(linear: Linear, threads: int = 1, kernels: CpuKernels = KERNELS) -> Bfloat16Linear:
    return pack_bfloat16(linear, kernels.library, FixedThreads(threads))


def random_rows(rows: int, inputs: int) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows * inputs))


@needs_products
@pytest.mark.parametrize("outputs, inputs", SIZES)
def test_every_number_of_rows_gives_the_bits_of_each_row_alone(outputs: int, inputs: int) -> None:
    linear = random_linear(outputs, inputs, bias=outputs % 2 == 1)
    x, residual = random_rows(33, inputs), random_rows(33, outputs)
    one = packed(linear)
    alone = torch.cat([one(x[row : row + 1]) for row in range(33)])
    added = torch.cat([one.added_to(residual[row : row + 1], x[row : row + 1]) for row in range(33)])

    exact = x.double() @ linear.weight_OI.double().T + (0 if linear.bias_O is None else linear.bias_O.double())
    scale = (x.abs().double() @ linear.weight_OI.abs().double().T).max()
    assert float((alone.double() - exact).abs().max()) <= 1e-6 * float(scale)
    assert torch.equal(added, alone + residual)
    for rows in range(34):
        for threads in (1, 2, 3):
            product = packed(linear, threads)
            assert torch.equal(product(x[:rows]), alone[:rows])
            assert torch.equal(product.added_to(residual[:rows], x[:rows]), added[:rows])


@needs_products
@pytest.mark.parametrize("rows", [127, 128, 400])
def test_more_rows_than_the_cache_holds(rows: int) -> None:
    linear = random_linear(96, 700)
    x = random_rows(rows, 700)
    alone = torch.cat([packed(linear)(x[row : row + 1]) for row in range(rows)])
    assert all(torch.equal(packed(linear, threads)(x), alone) for threads in (1, 3))


@needs_products
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(value: float) -> None:
    linear, x = random_linear(40, 33), random_rows(9, 33)
    healthy = packed(linear)(x)
    x[4, 32] = value
    y = packed(linear)(x)
    assert not y[4].isfinite().any()
    others = [row for row in range(9) if row != 4]
    assert torch.equal(y[others], healthy[others])


@needs_products
def test_what_follows_the_last_input_is_not_read() -> None:
    """An odd number of inputs: the weight beside the last one is 0, and 0 times NaN would be NaN."""
    linear = random_linear(20, 5)
    wide = torch.full((7, 6), float("nan"))
    x = wide.flatten()[:35].view(7, 5)
    x.copy_(random_rows(7, 5))
    assert packed(linear)(x).isfinite().all()


@needs_products
def test_a_weight_is_rounded_once() -> None:
    """One that bfloat16 cannot hold is rounded to it; extreme ones are kept."""
    values = torch.tensor([[1 + 2**-9, 3.0e38, 1e-40, -0.0]])
    product = packed(Linear(values))
    assert torch.equal(torch.cat([product(row[None]) for row in torch.eye(4)])[:, 0], values.bfloat16().float()[0])


@needs_products
def test_memory_that_is_not_contiguous() -> None:
    linear, x = random_linear(24, 10), random_rows(10, 8).T
    columns = Linear(torch.cat((linear.weight_OI, linear.weight_OI), dim=1)[:, 10:])
    assert torch.equal(packed(columns)(x), packed(linear)(x.contiguous()))
    assert packed(linear).packed.numel() == 2 * 16 * 10, "two bytes a weight, and padding to a whole panel"


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
    assert not load_kernels(CONFIG, torch.float32, "bfloat16").has_products


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
