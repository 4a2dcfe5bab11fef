"""How a decode shares a CPU: how many threads it uses, and when the loop is woken beside it.

The number of threads is measured once, at the start. A product of few rows may take less time than waking another
thread. Prompts always use all threads.
"""

from dataclasses import dataclass, replace
from typing import Final

import torch

from model.collectives import outside_steps
from model.cpu_products import Threads
from model.inputs import ModelInput, padding
from model.paged_kv import PagedKv
from model.runner import ModelRunner, Runner
from protocol.errors import InternalError
from runtime.clock import Clock
from scheduler.execution.streams import HostStream, Stream

ROWS: Final = (1, 4, 16)
ROUNDS: Final = 4  # one thread and all take turns; the fastest forward of each counts
CONTEXT: Final = 256  # tokens
EVERY_ROW: Final = 1 << 62


@dataclass(frozen=True)
class ForwardTimes:
    """Seconds of a decode of so many rows."""

    rows: int
    alone_s: float  # on one thread
    together_s: float  # on all


def alone_up_to(times: tuple[ForwardTimes, ...]) -> int:
    """The most rows up to which one thread was never slower. 0: there are none."""
    num_rows = 0
    for timed in times:
        if timed.alone_s > timed.together_s:
            break
        num_rows = timed.rows
    return num_rows


def choose_threads(
    runner: Runner, threads: Threads, kv: PagedKv, forward: Stream, clock: Clock, num_ranks: int = 1
) -> tuple[ForwardTimes, ...]:
    """Times decodes on the forward stream, and sets `threads`, which the runner's kernels use, by them. Blocks.

    The list of forwards has a fixed length, because all `num_ranks` ranks of a group run it together. They read and
    write page 0, which holds zeros afterwards. InternalError if one fails.
    """
    fastest = {(rows, alone): float("inf") for rows in ROWS for alone in (True, False)}
    errors: list[Exception] = []

    def run() -> None:
        try:
            with torch.inference_mode():
                for rows in ROWS:
                    inp = replace(_decodes(rows, kv), step=outside_steps(num_ranks, rows))
                    for alone in (True, False) * ROUNDS:
                        threads.alone_up_to = EVERY_ROW if alone else 0
                        start = clock.now()
                        runner.forward(inp, kv)
                        fastest[rows, alone] = min(fastest[rows, alone], clock.now() - start)
                for layer in range(kv.layout.num_layers):
                    kv.layer(layer)[0].zero_()
        except Exception as error:  # noqa: BLE001 - segments must not raise; the caller's thread raises it again
            errors.append(error)

    forward.launch([run])
    forward.record().synchronize()
    threads.alone_up_to = 0
    if errors:
        raise InternalError(f"a forward at the start has failed: {errors[0]}") from errors[0]
    times = tuple(ForwardTimes(rows, fastest[rows, True], fastest[rows, False]) for rows in ROWS)
    threads.alone_up_to = alone_up_to(times)
    return times


def wake_beside_layers(runner: Runner, forward: Stream) -> None:
    """Has the loop woken when the next decode, or its draft, has entered its layers, which run without the interpreter,
    or when a launch with chunks begins.

    Woken before, the loop takes the interpreter from the steps that lead there. Only for a runner whose decodes have
    such layers, and its draft, too: the lengths that a launch has published would wait until the draft is done.
    """
    if not isinstance(runner, ModelRunner) or not isinstance(forward, HostStream):
        return
    if runner.decoder.at_once is not None and (runner.draft is None or runner.draft.at_once):
        forward.tells_late, runner.threads.before_long_call = True, forward.tell


def _decodes(rows: int, kv: PagedKv) -> ModelInput:
    """Decodes whose contexts are page 0 again and again."""
    inp = padding(rows, kv.layout.num_pages(CONTEXT), kv.layout.page_size, kv.device)
    return replace(inp, seq_lens_B=torch.full((rows,), CONTEXT, dtype=torch.int64, device=kv.device))
