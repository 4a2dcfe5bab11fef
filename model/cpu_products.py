"""Products in C, and their threads. A row's result depends neither on the rows beside it nor on threads.

Weights may be bfloat16, packed. On a CPU with instructions for bfloat16 the rows are bfloat16, too
(cpu_products_bf16.c). On one without them they are float32 (cpu_products.c): a decode step reads every weight, so
weights of two bytes instead of four halve its time. Weights of the rows' own
type may be read where they lie (cpu_in_place.h).
Shapes: T tokens, I inputs, O outputs.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from model.linear import AnyLinear, Unpacked
from model.passes import Passes
from model.rows import slices_of, whole

PANEL: Final = 16  # outputs that lie side by side, as in cpu_products.h
STEP: Final = 32  # inputs are padded to a multiple of it


@dataclass(eq=False)
class Threads:
    """How a forward shares a CPU with others: how many threads it uses, and what it calls before it leaves Python for
    long, so that others may have the interpreter meanwhile."""

    alone_up_to: int = 0  # rows. Few may be faster on one thread: the others need not be woken
    before_long_call: Callable[[], None] = lambda: None

    def for_rows(self, rows: int) -> int:
        """Threads for a forward of so many rows."""
        return 1 if rows <= self.alone_up_to else torch.get_num_threads()


class CLinear(ctypes.Structure):
    """`linear` of cpu_products.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


@dataclass(frozen=True)
class CpuLinear:
    """A Linear for C. `dtype` is that of its rows."""

    library: ctypes.CDLL
    threads: Threads
    weight: Tensor  # packed bfloat16: (panels, pairs of inputs, PANEL, 2); or in place, of `dtype`: (outputs, inputs)
    bias_O: Tensor | None
    inputs: int
    outputs: int
    dtype: torch.dtype

    @property
    def is_packed(self) -> bool:
        """Whether the weight is packed bfloat16."""
        return self.weight.dim() > 2

    @property
    def in_c(self) -> CLinear:
        """The same for C. It is valid as long as this object lives."""
        bias = None if self.bias_O is None else self.bias_O.data_ptr()
        stride = 0 if self.is_packed else self.weight.stride(0)
        return CLinear(self.weight.data_ptr(), bias, self.inputs, self.outputs, stride)

    def __call__(self, x_TI: Tensor) -> Tensor:
        return self._product(x_TI, None)

    def added_to(self, residual_TO: Tensor, x_TI: Tensor) -> Tensor:
        """residual + y in one pass."""
        return self._product(x_TI, residual_TO.contiguous())

    def added_norm(self, residual_TO: Tensor, x_TI: Tensor, passes: Passes, weight_O: Tensor) -> tuple[Tensor, Tensor]:
        """The addition is a part of the product; see AnyLinear."""
        sum_TO = self.added_to(residual_TO, x_TI)
        return sum_TO, passes.rms_norm(sum_TO, weight_O)

    def _product(self, x_TI: Tensor, residual_TO: Tensor | None) -> Tensor:
        x_TI = x_TI.contiguous()
        assert x_TI.dtype == self.dtype and x_TI.dim() == 2 and x_TI.shape[1] == self.inputs
        rows = x_TI.shape[0]
        y_TO = torch.empty((rows, self.outputs), dtype=self.dtype)
        residual = None if residual_TO is None else residual_TO.data_ptr()
        self.library.product(self.in_c, x_TI.data_ptr(), residual, y_TO.data_ptr(), rows, self.threads.for_rows(rows))
        return y_TO


def for_c(linears: Sequence[AnyLinear]) -> list[CpuLinear]:
    """The linears, if C has products with all of them; else none."""
    found = [linear for linear in linears if isinstance(linear, CpuLinear)]
    return found if len(found) == len(linears) else []


def in_place(linear: Unpacked, library: ctypes.CDLL, threads: Threads) -> CpuLinear:
    """`linear` with its weight where it is, for rows of the same dtype. A share of a weight's columns is no copy."""
    weight_OI = whole(linear.weight_OI)
    assert weight_OI.dtype in (torch.float32, torch.bfloat16) and weight_OI.stride(1) == 1
    outputs, inputs = weight_OI.shape
    bias_O = None if linear.bias_O is None else linear.bias_O.float().contiguous()
    return CpuLinear(library, threads, weight_OI, bias_O, inputs, outputs, weight_OI.dtype)


def pack_bfloat16(linear: Unpacked, library: ctypes.CDLL, threads: Threads, dtype: torch.dtype) -> CpuLinear:
    """`linear` for rows of `dtype`. Weights that bfloat16 cannot hold are rounded to it; the bias is float32."""
    outputs, inputs = linear.weight_OI.shape
    panels, pairs = -(-outputs // PANEL), -(-inputs // STEP) * STEP // 2
    packed = torch.empty((panels, pairs, PANEL, 2), dtype=torch.bfloat16)
    for rows in slices_of(linear.weight_OI, PANEL):
        first, end = rows.start // PANEL, -(-rows.stop // PANEL)
        padding = (0, pairs * 2 - inputs, 0, end * PANEL - rows.stop)
        padded = (
            F.pad(linear.weight_OI[rows].bfloat16(), padding) if any(padding) else linear.weight_OI[rows].bfloat16()
        )
        packed[first:end] = padded.reshape(end - first, PANEL, pairs, 2).transpose(1, 2)
    bias_O = None if linear.bias_O is None else linear.bias_O.float().contiguous()
    return CpuLinear(library, threads, packed, bias_O, inputs, outputs, dtype)
