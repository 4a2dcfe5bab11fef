"""Triton's interpreter, as the installed Triton and numpy need it.

The interpreter of Triton 3.6 makes an integer of an array of one element, which numpy 2.5 refuses.
"""

from typing import Any

from triton.runtime import interpreter

_patch_lang_tensor = interpreter._patch_lang_tensor


def _with_index(tensor: Any, *rest: Any) -> None:
    _patch_lang_tensor(tensor, *rest)
    tensor.__index__ = lambda self: int(self.handle.data.item())


interpreter._patch_lang_tensor = _with_index
