"""Triton's interpreter, as the installed Triton and numpy need it.

The interpreter of Triton 3.6 makes an integer of an array of one element, which numpy 2.5 refuses. It cuts float32 off
to bfloat16, where a GPU rounds to the nearest. And in a product it takes the bits of bfloat16 for whole numbers.
"""

from typing import Any

import torch
import triton.language as tl
from triton.runtime import interpreter

_patch_lang_tensor = interpreter._patch_lang_tensor


def _with_index(tensor: Any, *rest: Any) -> None:
    _patch_lang_tensor(tensor, *rest)
    tensor.__index__ = lambda self: int(self.handle.data.item())


interpreter._patch_lang_tensor = _with_index


_convert_float = interpreter._convert_float


def _rounded(numbers: Any, kind: Any, wanted: Any, mode: Any) -> Any:
    if (kind, wanted) != (tl.float32, tl.bfloat16):
        return _convert_float(numbers, kind, wanted, mode)
    return torch.tensor(numbers, dtype=torch.float32).bfloat16().view(torch.uint16).numpy()


interpreter._convert_float = _rounded


_create_dot = interpreter.InterpreterBuilder.create_dot


def _wide(numbers: Any) -> Any:
    if numbers.dtype.scalar != tl.bfloat16:
        return numbers
    wide = torch.tensor(numbers.data.view("int16")).view(torch.bfloat16).float().numpy()
    return interpreter.TensorHandle(wide, tl.float32)


def _dot_of_wide(self: Any, a: Any, b: Any, *rest: Any) -> Any:
    return _create_dot(self, _wide(a), _wide(b), *rest)


interpreter.InterpreterBuilder.create_dot = _dot_of_wide
