"""Decode steps of Qwen3-8B's shape: with overlap and without, with graphs and without, beside their limits.

    floor        the bytes that a step must read, divided by the bandwidth of a device copy
    operations   what a step computes, at the rate of a large product
    roofline     the larger of the two, for products and for attention each, summed
    products     the step's products by themselves, as the device's library computes them
    forward      the launches of a step again and again, alone
    overlap      a unified worker that decodes, two launches in flight; serial: one
    host         the time of its thread in a step of the serial worker

Graphs are made for exactly the batch and its contexts, and as a server makes them: for its most requests, and for the
model's longest context. Prompts are not computed: their KV is random.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Final

from bench.gpu.decoders import (
    Case,
    Way,
    decoders,
    fits,
    random_kv,
    times_of,
    with_graphs,
    without_graphs,
)
from bench.gpu.products import Product, products_of, seconds_of
from bench.gpu.shape import device_runner, step_limits, words_of
from bench.gpu.sheet import StepSheet
from bench.gpu.timing import Limits, measured_limits
from bench.records import Value
from bench.step.decoding import PAGE_SIZE, Plan, Times
from model.graphs import GraphedRunner
from model.paged_kv import TORCH_DTYPES, PagedKv
from model.runner import ModelRunner

JUDGED_BATCHES: Final = (1, 32)
FLOOR_SHARE, OVERLAP_RATIO, SERVER_RATIO = 0.8, 1.02, 1.03
EAGER: Final = "no"
STEP_ABOUT: Final = (
    "Milliseconds, medians over rounds in turns. *graphs*: made for this batch and its contexts, as a server makes"
    " them, or none. *forward*: launches back to back, resolving and sampling included. *host*: the scheduler thread's"
    " work in a serial step."
)
LIMITS_ABOUT: Final = (
    "Milliseconds. *floor*: weights and KV read once, at the bandwidth above. *operations*: at the rate above."
    " *roofline*: the larger of the two, of products and of attention each, summed. *products*: the step's products by"
    " themselves (the table before). *forward*: with graphs for this batch. The last three are shares of it."
)
PRODUCTS_ABOUT: Final = (
    "Milliseconds of a step: the linears of one kind in all layers, with their own weights, in one graph. *floor*:"
    " weights read once, or their operations, whichever takes longer. *GB/s*: weights read."
)
SERVER_ABOUT: Final = (
    "Milliseconds of the same forward: graphs for exactly this batch and its contexts, and graphs that a server makes."
)


@dataclass(frozen=True)
class Size:
    """What is decoded. The first cases matter most."""

    cases: tuple[tuple[int, int], ...]  # batch and context
    eager: tuple[tuple[int, int], ...]  # those that are decoded without graphs, too
    steps: int
    rounds: int
    server_requests: int
    repeat: int  # of a product
    part_s: float  # the greatest time of one case


SIZES: Final = {
    "cuda": Size(
        ((1, 1024), (32, 1024), (256, 1024), (32, 8192)), ((1, 1024), (32, 1024)), steps=15, rounds=3,
        server_requests=256, repeat=15, part_s=18,
    ),
    "cpu": Size(
        ((1, 17), (3, 17), (3, 40)), ((1, 17),), steps=3, rounds=2, server_requests=8, repeat=3, part_s=30
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What all parts of the step share."""

    sheet: StepSheet
    runner: ModelRunner
    size: Size
    limits: Limits

    @property
    def words_of_graphs(self) -> tuple[str, str]:
        """Names graphs of one batch and graphs of a server."""
        return ("yes", "a server's") if self.runner.device.type == "cuda" else ("stand-in", "stand-in, a server's")


def measure_decode(sheet: StepSheet, device: str) -> None:
    """Runs the step `decode`."""
    size, runner = SIZES[device], device_runner(device, PAGE_SIZE)
    limits = measured_limits(runner.device)
    setting = Setting(sheet, runner, size, limits)
    sheet.note(f"{words_of(runner.config, device)}; {limits.words}")

    products_ms: dict[int, float] = {}
    for rows in dict.fromkeys(batch for batch, _ in size.cases):
        sheet.part(f"products of {rows} rows", PRODUCTS_S, partial(_products, setting, rows, products_ms))

    cases = [Case(batch, Plan(context, size.steps, size.rounds)) for batch, context in size.cases]
    cases = [case for case in cases if fits(sheet, runner, case)]
    if not cases:
        return
    kv = random_kv(runner, cases)
    servers: list[GraphedRunner] = []
    sheet.part("a server's graphs", size.part_s, partial(_capture, setting, kv, servers))
    for case in cases:
        sheet.part(str(case), size.part_s, partial(_one, setting, kv, servers, products_ms, case))


def _capture(setting: Setting, kv: PagedKv, servers: list[GraphedRunner]) -> None:
    """Adds to `servers` a runner with the graphs of a server."""
    num_requests, max_context = setting.size.server_requests, setting.runner.config.context_length
    start = perf_counter()
    servers.append(with_graphs(setting.runner, kv, num_requests, max_context))
    setting.sheet.note(
        f"a server's graphs are for {num_requests} requests and contexts of {max_context:,} tokens: made in"
        f" {perf_counter() - start:.1f} s"
    )


def _one(
    setting: Setting, kv: PagedKv, servers: Sequence[GraphedRunner], products_ms: Mapping[int, float], case: Case
) -> None:
    """Decodes one case in all ways, and writes its lines in all tables."""
    runner, (tight, server) = setting.runner, setting.words_of_graphs
    ways = [Way(tight, with_graphs(runner, kv, case.batch, case.plan.max_context))]
    ways += [Way(server, other_server, overlaps=(True,)) for other_server in servers]
    if (case.batch, case.plan.context) in setting.size.eager:
        ways.append(Way(EAGER, without_graphs(runner)))
    with decoders(ways, kv, case) as opened:
        times = times_of(opened, case.plan)

    for name, time_s in times.items():
        _step_row(setting.sheet, case, name, time_s, is_judged=name != EAGER)
    _limits_row(setting, case, times[tight].forward, products_ms.get(case.batch))
    if server in times:
        _server_row(setting.sheet, case, times[tight].forward, times[server].forward)


# ---- rows ----


def _cells(case: Case) -> dict[str, Value]:
    return {"batch": case.batch, "context": case.plan.context}


def _step_row(sheet: StepSheet, case: Case, graphs: str, times: Times, *, is_judged: bool) -> None:
    ratio = times.overlap / times.forward
    sheet.row(
        "A decode step", {**_cells(case), "graphs": graphs, **vars(times), "overlap / forward": ratio}, STEP_ABOUT
    )
    if is_judged:
        sheet.goal(f"{case}, graphs: {graphs}: overlap / forward", ratio, "at most", OVERLAP_RATIO)


def _limits_row(setting: Setting, case: Case, forward: float, products: float | None) -> None:
    """`forward` and `products` are milliseconds. The context is the mean one while it is decoded."""
    context = case.plan.context + case.plan.num_tokens // 2
    layout = setting.runner.kv_layout(PAGE_SIZE)
    least = step_limits(setting.runner.config, layout, case.batch, context, setting.limits)
    floor, roofline = least.bytes_s * 1e3, least.roofline_s * 1e3
    cells = _cells(case) | {"floor": floor, "operations": least.operations_s * 1e3, "roofline": roofline}
    cells |= {"products": products, "forward": forward, "floor / forward": floor / forward}
    cells |= {"roofline / forward": roofline / forward}
    cells |= {"products / forward": None if products is None else products / forward}
    setting.sheet.row("Limits of a decode step", cells, LIMITS_ABOUT)
    if case.batch in JUDGED_BATCHES:
        setting.sheet.goal(f"{case}, graphs: floor / forward", floor / forward, "at least", FLOOR_SHARE)


def _server_row(sheet: StepSheet, case: Case, tight: float, server: float) -> None:
    cells = {**_cells(case), "for this batch": tight, "for a server": server, "ratio": server / tight}
    sheet.row("Forwards by a server's graphs", cells, SERVER_ABOUT)
    sheet.goal(f"{case}: forward by a server's graphs / by those of the batch", server / tight, "at most", SERVER_RATIO)


# ---- products ----

PRODUCTS_S: Final = 5.0


def _products(setting: Setting, rows: int, products_ms: dict[int, float]) -> None:
    """Writes a line for each product, and the milliseconds of all of them to `products_ms`."""
    runner, total = setting.runner, 0.0
    for product in products_of(runner.decoder, runner.config):
        seconds = seconds_of(product, rows, runner, setting.size.repeat)
        total += seconds
        setting.sheet.row("Products of a decode step", _product_cells(setting, product, rows, seconds), PRODUCTS_ABOUT)
    products_ms[rows] = total * 1e3


def _product_cells(setting: Setting, product: Product, rows: int, seconds: float) -> dict[str, Value]:
    item_bytes = TORCH_DTYPES[setting.runner.dtype].itemsize
    floor = product.floor_s(rows, item_bytes, setting.limits)
    cells: dict[str, Value] = {"rows": rows, "product": product.name}
    cells |= {"weights of one": f"{product.outputs:,} x {product.inputs:,}", "linears": len(product.linears)}
    cells |= {"ms": seconds * 1e3, "floor": floor * 1e3, "floor / ms": floor / seconds}
    return cells | {"GB/s": product.weights * item_bytes / seconds / 1e9}
