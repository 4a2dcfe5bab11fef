"""What a worker tells the gateway of itself."""

from typing import Any

import torch

from model.graphs import GraphedRunner
from model.paged_kv import PagedKv
from protocol.messages_gateway import Role
from runtime.settings import WorkerSettings
from tests.doubles.hash_model import FakeRunner
from worker.registration import graphs_info


def settings(role: Role, **fields: Any) -> WorkerSettings:
    return WorkerSettings(worker_id="w", role=role, gateway="tcp://127.0.0.1:1", model="/m", **fields)


def test_the_gateway_hears_of_graphs_and_why_there_are_none() -> None:
    plain, on_gpu = FakeRunner(context_length=64), FakeRunner(device=torch.device("cuda"))
    graphed = GraphedRunner(plain, lambda run: run)
    graphed.capture(PagedKv(plain.kv_layout(4), 9), 4, 8)
    unified, prefill = settings(Role.UNIFIED, disable_cuda_graph=True), settings(Role.PREFILL)
    assert graphs_info(graphed, unified) == "captured"
    assert graphs_info(GraphedRunner(plain), unified) == "none: not captured yet"
    assert graphs_info(on_gpu, unified) == "none: --disable-cuda-graph"
    assert graphs_info(on_gpu, prefill) == graphs_info(plain, unified) == ""
