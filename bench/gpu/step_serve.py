"""The service over HTTP: a unified worker, and a pair whose workers share the device, under the same loads.

    clients          each sends its next request when its last one has ended
    long prompts     a few a second, beside streams that decode; and the streams without them

loadtest/ drives the loads.
"""

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from bench.gpu.shape import QWEN3_8B, TINY, RandomWeights
from bench.gpu.sheet import StepSheet
from loadtest.bench_model import write_model
from loadtest.deployment import PAIR, UNIFIED, deployed
from loadtest.http_exchange import Server, get
from loadtest.load import cells_of, failures, plain_load, run_load
from loadtest.measure import Load, Measured
from runtime.clock import MonotonicClock

MID_SIZE: Final[Mapping[str, Any]] = {  # Qwen3-1.7B's shape without its embeddings
    **QWEN3_8B,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "max_position_embeddings": 8192,
}
DEPLOYMENTS: Final = {"unified": UNIFIED, "pair": PAIR}
TIMES: Final = "Latencies in ms; *ITL p50* is `-` where most tokens came together with the one before."
CLIENTS_ABOUT: Final = f"Each client sends its next request when its last one has ended. {TIMES}"
LONG_ABOUT: Final = f"Streams that decode all the while, alone and beside long prompts. {TIMES}"


@dataclass(frozen=True)
class Size:
    """What is served and asked. `serve`: further arguments of baton serve."""

    model: Mapping[str, Any]
    serve: tuple[str, ...]
    clients: tuple[int, ...]
    load: Load  # of one client
    streams: Load
    long_tokens: int
    long_rate: float
    deployment_s: float  # the greatest time of one deployment, with its start


SIZES: Final = {
    "cuda": Size(
        MID_SIZE, ("--device", "cuda", "--max-total-tokens", "131072", "--max-running-requests", "128"), (1, 32, 128),
        plain_load(8, 1, prompt_tokens=512, output_tokens=128, vocab=151936, seed=1),
        plain_load(64, 32, prompt_tokens=64, output_tokens=512, vocab=151936, seed=2),
        6000, 4.0, 45,
    ),
    "cpu": Size(
        TINY, ("--device", "cpu", "--max-total-tokens", "4096", "--threads", "1"), (1, 3),
        plain_load(2, 1, prompt_tokens=20, output_tokens=6, vocab=512, seed=1),
        plain_load(4, 2, prompt_tokens=8, output_tokens=30, vocab=512, seed=2), 200, 4.0, 90,
    ),
}  # fmt: skip


def measure_serve(sheet: StepSheet, device: str) -> None:
    """Runs the step."""
    size = SIZES[device]
    with tempfile.TemporaryDirectory(prefix="baton-gpu-") as scratch:
        folder = Path(scratch) / "model"
        write_model(folder, size.model, lambda name, shape: random_bytes(name, shape, device))
        megabytes = (folder / "model.safetensors").stat().st_size / 1e6
        sheet.note(
            f"a model like Qwen3 with {size.model['num_hidden_layers']} layers, {megabytes:,.1f} MB of random weights"
        )
        for name in DEPLOYMENTS:
            sheet.part(name, size.deployment_s, partial(_one, sheet, name, folder, size))


def random_bytes(name: str, shape: tuple[int, ...], device: str) -> bytes:
    """The bytes of one bfloat16 tensor, made on the device."""
    tensor = RandomWeights().take(name, shape, torch.bfloat16, torch.device(device))
    return tensor.cpu().view(torch.int16).numpy().tobytes()


def _one(sheet: StepSheet, name: str, folder: Path, size: Size) -> None:
    asyncio.run(_deployment(sheet, name, folder, size))


async def _deployment(sheet: StepSheet, name: str, folder: Path, size: Size) -> None:
    """One deployment under every load."""
    clock = MonotonicClock()
    async with deployed(["--model", str(folder), *size.serve, *DEPLOYMENTS[name]]) as url:
        server = Server.at(url, "")
        for clients in size.clients:
            num_requests = max(size.load.num_conversations or 0, 2 * clients)
            load = replace(size.load, num_conversations=num_requests, max_concurrency=clients, num_warmups=clients)
            measured = await run_load(server, clock, load)
            add_row(sheet, "Clients over HTTP", {"deployment": name, "clients": clients}, measured, CLIENTS_ABOUT)
        for rate in (0.0, size.long_rate):
            load = replace(size.streams, intruder_rate=rate, intruder_tokens=size.long_tokens)
            measured = await run_load(server, clock, load)
            cells = {
                "deployment": name,
                "long prompts": f"{size.long_tokens:,} tokens, {rate:g} a second" if rate else "none",
            }
            add_row(sheet, "Long prompts beside streams", cells, measured, LONG_ABOUT)
        _, body = await get(server, clock, "/workers")
        for words in ways_of_kv(json.loads(body)):
            sheet.note(f"{name}: {words}")


def ways_of_kv(workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """How KV has come to each decode worker, from GET /workers."""
    return [
        f"KV came to {worker['id']} from {peer} by {way}"
        for worker in workers
        for peer, way in worker["transfer"].items()
    ]


def add_row(sheet: StepSheet, table: str, cells: Mapping[str, str | int], measured: Measured, about: str) -> None:
    """Adds a line to a table. Failed requests are a fault."""
    figures = {
        name: value for name, value in cells_of(measured).items() if measured.beside or not name.startswith("long")
    }
    sheet.row(table, {**cells, "load": measured.load.work.words(), **figures}, about)
    if reason := failures(measured):
        sheet.fault(f"{table}, {', '.join(map(str, cells.values()))}: {reason}")
