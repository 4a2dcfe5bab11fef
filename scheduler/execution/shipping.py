"""Layers of prompts that leave this worker: when a transport may read the KV of each.

layer computed --no copy needed--> LayerWritten
               --pages copied to host memory, on the staging stream--> LayerWritten
"""

from functools import partial

from model.inputs import int64_column
from protocol.kv_layout import touched
from scheduler.execution.device import Device
from scheduler.execution.launch import Launch, WrittenLayer
from scheduler.plan import Chunk


class Shipping:
    """The executor's part of sending KV. Only launches that ship use it."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def prepare(self, launch: Launch, chunks: tuple[Chunk, ...]) -> None:
        """Notes the pages that must be copied to host memory once the launch has written its own."""
        kv, pages = self._device.kv, list[int]()
        for chunk in chunks:
            if chunk.host_from is not None:
                where = touched(chunk.host_from, chunk.end, kv.layout.page_size)
                pages += self._device.page_table.req_to_page_cpu[chunk.row, where].tolist()
        if written := kv.to_stage(pages):
            launch.written_pages_N = int64_column(written, kv.device)

    def layer_written(self, launch: Launch, layer: int) -> None:
        """Called on the forward stream as soon as the KV of `layer` is written."""
        device, pages_N = self._device, launch.written_pages_N
        written = device.forward.mark()
        if pages_N is not None:
            device.staging.wait(written)
            device.staging.launch([device.guarded(partial(device.kv.stage_out, layer))], pages_N)
            written = device.staging.record()
        launch.layers.append(WrittenLayer(layer, written))
