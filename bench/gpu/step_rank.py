"""A group of one rank on one device: its collectives, and a decode that its layers compute with them.

    collectives    a gather and an exchange: called, captured as a graph, replayed; beside a copy of the same bytes
    forward        a decode of a small model in float32, beside the same model without a group

One rank needs no other GPU, but takes the same way through NCCL and through graphs. On a CPU shared memory of the host
stands in for NCCL.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor

from bench.device_seconds import seconds_each
from bench.gpu.kernel_sides import relative_error
from bench.gpu.shape import TINY, captured, maker_of_graphs, noise, random_runner, words_of_graphs
from bench.gpu.sheet import StepSheet
from bench.records import Value
from bench.step.costs import decode_rows, memory_for
from bench.step.decoding import PAGE_SIZE
from model.collectives import outside_steps
from model.graphs import GraphedRunner
from model.group_meeting import AnyCollectives, open_collectives
from model.inputs import ModelInput
from model.runner import ModelRunner
from protocol.messages_group import GroupPlace

PART_S: Final = 20.0
MEET_S: Final = 15.0  # for NCCL to start
SIZES: Final = {"cuda": ((1, 4096), (32, 4096), (256, 4096)), "cpu": ((1, 64), (3, 64))}  # tokens, hidden
BATCHES: Final = {"cuda": (1, 32), "cpu": (1, 3)}
CONTEXT: Final = {"cuda": 512, "cpu": 20}
REPEAT: Final = {"cuda": 50, "cpu": 3}
CALLS: Final = 20  # in one graph
FAR: Final = 1e-4  # ‖found - expected‖ / ‖expected‖, float32
SMALL: Final = {
    **TINY,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
}
FIELDS: Final = {"cuda": SMALL, "cpu": TINY}
STAND_IN: Final = "Shared memory of the host stands in for NCCL."
CALL_ABOUT: Final = (
    f"Microseconds of one call, in bfloat16. *called*: one after the other. *replayed*: {CALLS} in a graph, over"
    f" {CALLS}. *copy*: of the same bytes, in both ways. *nothing*: two events with no work between them."
)
FORWARD_ABOUT: Final = (
    "Milliseconds of a decode without sampling. *alone*: the same weights without a group. *distance*: the norm of the"
    " logits' difference from those of the model alone, over their norm."
)


@contextmanager
def one_rank(device: torch.device) -> Iterator[AnyCollectives]:
    """A group of one rank on this device."""
    with tempfile.TemporaryDirectory(prefix="baton-gpu-") as folder:
        ranks = open_collectives(GroupPlace("gpu", 1, 0, 1), folder, device, timeout_s=MEET_S)
        try:
            yield ranks
        finally:
            ranks.close()


def measure_rank(sheet: StepSheet, device: str) -> None:
    """Runs the step `rank`."""
    where = torch.device(device, 0) if device == "cuda" else torch.device(device)
    sheet.note(f"one rank, with {words_of_graphs(device)}. {'NCCL.' if device == 'cuda' else STAND_IN}")
    sheet.part("collectives", PART_S, partial(_collectives, sheet, where))
    sheet.part("a group's forward", PART_S, partial(_forwards, sheet, where))


# ---- collectives ----


@torch.inference_mode()
def _collectives(sheet: StepSheet, device: torch.device) -> None:
    with one_rank(device) as ranks:
        for num_tokens, hidden in SIZES[device.type]:
            for name, call in calls_of(ranks, num_tokens).items():
                given = torch.randn(1, num_tokens, hidden, device=device).bfloat16()
                check_values(call, given, device)
                cells: dict[str, Value] = {"call": name, "tokens": num_tokens, "KB": given.nbytes / 1e3}
                sheet.row("Collectives of one rank", cells | _timed(call, given, device), CALL_ABOUT)


Call = Callable[[Tensor], Tensor]  # of what all ranks get, (R, P, E)


def calls_of(ranks: AnyCollectives, num_tokens: int) -> dict[str, Call]:
    """The collectives of a group of one rank: each gives what it is given."""
    step = outside_steps(1, num_tokens, graphs=True)
    return {
        "gather": lambda given_RPE: ranks.gather(given_RPE[0], step),
        "exchange": lambda given_RPE: ranks.exchange(given_RPE, step),
    }


def check_values(call: Call, given: Tensor, device: torch.device) -> None:
    """RuntimeError unless a call gives what it is given: called, and replayed after other numbers were put in."""
    if not torch.equal(call(given), given):
        raise RuntimeError("a call gives other values than it is given")
    taken = torch.empty_like(given)

    def run() -> None:
        taken.copy_(call(given))

    replay = maker_of_graphs(device)(run)
    taken.fill_(float("nan"))
    given.normal_()
    replay()
    if not torch.equal(taken, given):
        raise RuntimeError("a replayed call gives other values than it is given")


def _timed(call: Call, given: Tensor, device: torch.device) -> dict[str, float]:
    """Microseconds."""
    found = {}
    for words, each in (("", call), ("copy, ", torch.clone)):

        def run(each: Call = each) -> None:
            for _ in range(CALLS):
                each(given)

        run()
        replay = maker_of_graphs(device)(run)
        found[f"{words}called"] = _microseconds(partial(each, given), device)
        found[f"{words}replayed"] = _microseconds(replay, device) / CALLS
    return found | {"nothing": _microseconds(lambda: None, device)}


def _microseconds(run: Callable[[], object], device: torch.device) -> float:
    return median(seconds_each(run, REPEAT[device.type], device)) * 1e6


# ---- a forward ----


@torch.inference_mode()
def _forwards(sheet: StepSheet, device: torch.device) -> None:
    fields = FIELDS[device.type]
    with one_rank(device) as ranks:
        alone = random_runner(fields, str(device), PAGE_SIZE, dtype="float32")
        of_group = random_runner(fields, str(device), PAGE_SIZE, dtype="float32", collectives=ranks)
        config = alone.config
        words = f"{config.num_layers} layers, hidden {config.hidden_size:,}, float32"
        sheet.note(f"a decode: {words}; {2 * config.num_layers} collectives in a forward")
        for batch in BATCHES[device.type]:
            found = forwards(alone, of_group, batch, CONTEXT[device.type])
            sheet.row("A decode of one rank", {"batch": batch, **found}, FORWARD_ABOUT)
            for way in ("called", "replayed"):
                if not (far := found[f"distance, {way}"]) <= FAR:
                    sheet.fault(f"batch {batch}, {way}: logits differ by {far:.2g} from those without a group")


def forwards(alone: ModelRunner, of_group: ModelRunner, batch: int, context: int) -> dict[str, Any]:
    """Milliseconds of a decode with a group and without, and how far its logits are from those without."""
    device = alone.device
    kv, same_kv = (memory_for(alone, batch, context, 0) for _ in range(2))
    noise(kv)
    same_kv.device_bytes.copy_(kv.device_bytes)
    inp = decode_rows(kv, batch, 1, context, alone.config.vocab_size)
    by_group = replace(inp, step=outside_steps(1, batch))
    by_graph = replace(inp, step=outside_steps(1, batch, graphs=True))

    expected_LV = alone.forward(inp, kv).clone()
    called_LV = of_group.forward(by_group, same_kv).clone()
    graphed, graphed_alone = (GraphedRunner(each, maker_of_graphs(device)) for each in (of_group, alone))
    for each, memory in ((graphed, same_kv), (graphed_alone, kv)):
        each.capture(memory, batch, memory.layout.num_pages(context + 1))
        captured(each)
    replayed_LV = graphed.forward(by_graph, same_kv).clone()
    if graphed.num_replays != 1:
        raise RuntimeError("no graph was replayed")

    sides: dict[str, tuple[ModelRunner | GraphedRunner, ModelInput, Any]] = {
        "called": (of_group, by_group, same_kv),
        "replayed": (graphed, by_graph, same_kv),
        "alone, called": (alone, inp, kv),
        "alone, replayed": (graphed_alone, inp, kv),
    }
    found = {
        name: median(seconds_each(partial(runner.forward, given, memory), REPEAT[device.type], device)) * 1e3
        for name, (runner, given, memory) in sides.items()
    }
    distances = {"called": called_LV, "replayed": replayed_LV}
    return found | {f"distance, {name}": relative_error(each, expected_LV) for name, each in distances.items()}
