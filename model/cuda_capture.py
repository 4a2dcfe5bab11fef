"""Captures what a stream is given as a CUDA graph, with torch. graphs.py decides what is captured."""

from collections.abc import Callable
from typing import Any, Final

import torch

from protocol.errors import ConfigError

WHY_CHARS: Final = 200  # of the driver's reason

Run = Callable[[], None]
Capture = Callable[[Run], Run]  # takes a run to capture, returns its replay


class CudaCapture:
    """Makes CUDA graphs that share memory: they never run at the same time, and none reads what another has left."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Run) -> Run:
        """A graph of `run`, which the caller has run before. Errors of torch pass through.

        ConfigError if the driver did not end the capture. torch then counts it as under way for as long as this process
        lives, and never frees memory that two streams have used.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                run()
        except RuntimeError as error:
            if not _has_ended(graph):
                raise ConfigError(_refused_capture(error), param="disable-cuda-graph") from error
            raise
        self._pool = graph.pool()
        replay: Run = graph.replay
        return replay


def _has_ended(graph: Any) -> bool:
    """Whether torch has ended the capture, whatever came of it: only then the graph has a pool."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


def _refused_capture(error: RuntimeError) -> str:
    reason = (str(error.__context__ or error).splitlines() or [type(error).__name__])[0][:WHY_CHARS]
    return f"decodes cannot be captured as CUDA graphs: {reason}; expected --disable-cuda-graph, to decode without them"
