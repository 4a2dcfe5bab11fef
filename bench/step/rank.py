"""`python -m bench.step.rank JSON`: one rank of a group that is measured. Its last line of output is one JSON object.

agree     steps that are announced, agreed on and launched at once, over the sockets of workers
serve     a unified worker; rank 0 has requests, the others none, or all have some
"""

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

import torch
import zmq
from torch import Tensor

from bench.step.decoding import EVERY_TOKEN, executor_of, planner_of
from bench.step.kinds import GREEDY
from loadtest.bench_model import bench_model
from model.collectives import Collectives
from model.fake import FakeRunner
from model.group_meeting import open_collectives
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.runner import ModelRunner, Runner
from protocol.messages_group import GroupPlace
from runtime.bus import Wake
from runtime.clock import MonotonicClock
from runtime.process_life import StopSignal
from scheduler.agreement import Agreement
from scheduler.execution.streams import FORWARD_NICENESS, HostStream
from unified.worker import UnifiedWorker
from worker.group_link import GroupLink
from worker.policies import Policies
from worker.rank_sockets import RankSockets

WARM: Final = 20  # steps that do not count
CONTEXT: Final = 64
BEAT_S: Final = 0.25
LAYERS: Final = 8
HIDDEN: Final = 64
SLEEP_S: Final = 0.010  # of a forward with tokens, in all layers together
TIMEOUT_S: Final = 120.0


@dataclass(frozen=True)
class Order:
    """What one rank does."""

    what: str
    place: GroupPlace
    folder: str
    steps: int
    model: str = "sleep"  # or "real": the model of the comparisons
    batch: int = 1  # requests of a rank with work
    all_busy: bool = False  # False: rank 0 alone has work

    def to_json(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Order":
        """Reads what `to_json` has written."""
        fields: dict[str, Any] = json.loads(text)
        return Order(**{**fields, "place": GroupPlace(**fields["place"])})


class SleepingRunner(FakeRunner):
    """Layers that sleep, if there are tokens, and join their collectives. It always says token 0."""

    def forward(self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """See Runner. It reads and writes no KV."""
        for _ in range(self.num_layers):
            if inp.input_ids_T.numel():
                time.sleep(SLEEP_S / self.num_layers)  # noqa: TID251 - stands for computing
            if self.collectives is not None and inp.step is not None:
                own_PE = torch.zeros(inp.step.padded, HIDDEN)
                self.collectives.exchange(self.collectives.gather(own_PE, inp.step), inp.step)
        return torch.zeros(inp.logit_indices_L.shape[0], self.vocab_size)


def agree(order: Order) -> dict[str, float]:
    """Seconds from the announcement of a step until it is agreed."""
    clock, stop, index = MonotonicClock(), StopSignal(), order.place
    sockets = RankSockets(index, order.folder)
    assert sockets.meet("", stop, clock)
    agreement = Agreement(index.epoch, index.rank, index.size)
    link = GroupLink(sockets, agreement, clock, lambda: 0)
    poller = zmq.Poller()
    for pollable in link.pollables():
        poller.register(pollable, zmq.POLLIN)

    times = []
    for _ in range(WARM + order.steps):
        began = clock.now()
        agreement.announce(1)
        link.flush()
        while agreement.shape is None:
            poller.poll(1000)
            link.receive()
        agreement.launched()
        times.append(clock.now() - began)
    return {"seconds": median(times[WARM:])}


def serve(order: Order) -> dict[str, float]:
    """Seconds of a decode step on rank 0, and what this rank holds. Ranks without work serve until they are killed."""
    clock, stop, wake, own = MonotonicClock(), StopSignal(), Wake(), order.place
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-4)  # as workers have it
    is_alone, on_cpu = own.size == 1, torch.device("cpu")
    sockets = None if is_alone else RankSockets(own, order.folder)
    assert sockets is None or sockets.meet("", stop, clock)
    together = None if is_alone else open_collectives(own, order.folder, on_cpu, timeout_s=TIMEOUT_S)
    runner = _runner(order, together)

    max_context = CONTEXT + WARM + order.steps + 16
    forward = HostStream("forward", wake.set, FORWARD_NICENESS)
    executor = executor_of(runner, order.batch, max_context, forward, rank=own.rank, num_ranks=own.size)
    executor.warm_up()
    agreement = None if is_alone else Agreement(own.epoch, own.rank, own.size)
    link = None
    if sockets is not None and agreement is not None:
        link = GroupLink(sockets, agreement, clock, lambda: executor.running_step)
    worker = UnifiedWorker(
        planner_of(executor, agreement=agreement), f"rank-{own.rank}", clock, Policies(chunk_size=EVERY_TOKEN)
    )
    if order.all_busy or own.rank == 0:
        for index in range(order.batch):
            prompt = tuple(random.Random(index).choices(range(worker.planner.vocab_size), k=CONTEXT))
            worker.on_gateway(GREEDY.assign(f"r{index}", prompt, WARM + order.steps + 8))

    poller = zmq.Poller()
    for pollable in (wake.fd, stop.fd, *(link.pollables() if link else ())):
        poller.register(pollable, zmq.POLLIN)
    beat_at, ended = 0.0, list[float]()  # when each launch was over
    while not stop.is_set():
        if link is not None:
            link.receive()
        progressed, num_over = worker.turn(), worker.planner.num_launches - len(worker.planner.in_flight)
        worker.outbox.gateway.clear()
        now = clock.now()
        ended += [now] * (num_over - len(ended))
        if len(ended) > WARM + order.steps and (order.all_busy or own.rank == 0):
            break
        if link is not None:
            link.flush()
            if now >= beat_at:
                link.tick()
                beat_at = now + BEAT_S
        if not progressed:
            poller.poll(50)
            wake.clear()
    step_s = (ended[-1] - ended[WARM]) / (len(ended) - 1 - WARM) if len(ended) > WARM + 1 else 0.0
    return {"seconds": step_s, "weights": runner.private_weight_bytes + runner.mapped_weight_bytes}


def _runner(order: Order, together: Collectives | None) -> Runner:
    if order.model == "real":
        return ModelRunner.load(bench_model(), device="cpu", collectives=together)
    return SleepingRunner(num_layers=LAYERS, collectives=together)


def main(text: str) -> None:
    """Carries out one order, and says what it found."""
    order = Order.from_json(text)
    figures = {"agree": agree, "serve": serve}[order.what](order)
    print(json.dumps(figures), flush=True)
    threading.Event().wait()  # the other ranks may still be in a collective; the parent ends this process


if __name__ == "__main__":
    main(sys.argv[1])
