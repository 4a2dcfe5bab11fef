"""Tells the race detector what torch does not show it: names, kernels that the fake has no need of, bytes sent."""

import numpy as np
import numpy.typing as npt
from torch import Tensor

from decode.worker import DecodeWorker
from model.fake_hash import _multipliers
from model.inputs import ModelInput
from scheduler.execution.executor import Executor
from scheduler.execution.future_map import DraftExtras, FutureMap
from tests.cluster import Worker
from tests.doubles.backend_inproc import InprocNetwork, Packet
from tests.doubles.hash_model import FakeRunner
from tests.doubles.race_detector import SCHEDULER, Clock, RaceDetector


def read_inputs(detector: RaceDetector, inp: ModelInput) -> None:
    """A real forward reads all of its inputs, the fake only some."""
    tensors = (inp.input_ids_T, inp.positions_T, inp.slots_T, inp.page_table_BP, inp.seq_lens_B, inp.logit_indices_L)
    detector.touch(tensors, "forward")


def warm_up(runner: FakeRunner) -> None:
    """Makes the constants that all workers of the process share. Each would make its own in a process of its own."""
    _multipliers(2 * runner.num_kv_heads * runner.head_dim, runner.device)


def observe(detector: RaceDetector, worker: Worker, executor: Executor, who: str) -> None:
    """Names a worker's memory, and sees what the transfer reads and writes of it."""
    is_landing = isinstance(worker, DecodeWorker)
    _name_buffers(detector, executor.future_map, who)
    detector.name(executor.page_table.req_to_page, f"{who} req_to_page")
    detector.name(executor.kv.layer(0), f"{who} KV")
    if executor.host is not None:
        detector.name(executor.host.memory.layer(0), f"{who} host copies")
    view = executor.kv.page_bytes_view

    def seen(layer: int, page_start: int, num_pages: int) -> memoryview:
        pages = view(layer, page_start, num_pages)
        what = f"{'landing in' if is_landing else 'sending of'} layer {layer}, pages {page_start}+{num_pages}"
        detector.touch_bytes(pages, what, is_write=is_landing)
        return pages

    def seen_through(layer: int, pages: npt.NDArray[np.int64]) -> memoryview:
        """Of a window, only the pages that are asked for are touched."""
        for page in pages.tolist():
            seen(layer, page, 1)
        return view(layer, 0, int(pages.max()) + 1)

    vars(executor.kv)["page_bytes_view"] = seen
    vars(executor.kv)["window"] = seen_through


def _name_buffers(detector: RaceDetector, future_map: FutureMap, who: str) -> None:
    """Those of draft inputs when the first payload makes them."""
    detector.name(future_map.output_tokens_buf, f"{who} output_tokens_buf")
    detector.name(future_map.new_seq_lens_buf, f"{who} new_seq_lens_buf")
    stash_extras = future_map.stash_extras

    def named(rows_N: Tensor, extras: DraftExtras, owners_N: Tensor) -> None:
        known = set(future_map._extras)
        stash_extras(rows_N, extras, owners_N)
        for name in future_map._extras.keys() - known:
            detector.name(future_map._extras[name].values, f"{who} {name} buffer")
            detector.name(future_map._extras[name].owners, f"{who} owners of the {name} buffer")

    vars(future_map)["stash_extras"] = named


def observe_network(detector: RaceDetector, network: InprocNetwork) -> None:
    """A frame under way is a view of its pages: a read that lasts from its sending until it is taken."""
    carry, take = network.carry, network.take
    since: dict[int, Clock] = {}

    def carried(sender: int, endpoint: str, packet: Packet) -> None:
        since[id(packet.transit)] = detector.clock(SCHEDULER)
        carry(sender, endpoint, packet)

    def taken(endpoint: str) -> Packet | None:
        packet = take(endpoint)
        if packet is not None:
            for part in packet.parts:
                detector.touch_bytes(part, "a frame under way until now", since=since[id(packet.transit)])
        return packet

    vars(network)["carry"], vars(network)["take"] = carried, taken
