"""Counts what Python executes, so that a test can say what something costs without a clock."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions(run: Callable[[], object]) -> int:
    """Bytecode instructions that `run` executes on this thread, in whatever it calls. What C code does is not seen."""
    num = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal num
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        num += event == "opcode"
        return trace

    sys._getframe().f_trace_opcodes = True  # before tracing begins: else Python 3.12 sees none the first time
    before = sys.gettrace()
    gc.collect()
    gc.disable()  # what is collected meanwhile may run code of its own
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
        gc.enable()
    return num
