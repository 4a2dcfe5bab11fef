"""How an executor launches plans: the interface, and launches without a draft.

    resolve, compute, sample    one sequence; the next launch is prepared meanwhile

scheduler/speculation/draft_launches.py has launches with a draft.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from model.inputs import ModelInput
from model.sampler import sample_scored
from protocol.messages_group import StepShape
from scheduler.execution.batches import ForwardBatch, Relay, ScheduleBatch, asked_of, owners_drawn, tokens_of
from scheduler.execution.device import Device
from scheduler.execution.histories import seeds_of
from scheduler.execution.launch import Launch, failures_of, failures_of_target
from scheduler.execution.shipping import Shipping
from scheduler.plan import Plan


class Launches(Protocol):
    """Builds launches and enqueues their segments. One object of an executor, chosen at the start."""

    def no_rows(self) -> ScheduleBatch:
        """The batch that decodes before the first plan."""
        ...

    def applied(self, plan: Plan, running: ScheduleBatch) -> None:
        """The changes of `plan` are made in `running`."""
        ...

    def is_ready(self, running: ScheduleBatch) -> bool:
        """Whether the lengths of `running` are known, so that `enqueue` does not wait."""
        ...

    def num_tokens(self, plan: Plan) -> int:
        """Tokens that the target computes in the launch of `plan`."""
        ...

    def enqueue(self, plan: Plan, running: ScheduleBatch, step: StepShape) -> Launch:
        """Enqueues the launch of `plan`, which is applied. `step` is what all ranks of the group launch.

        If no inputs can be built, the launch fails; the target then computes as many tokens of padding.
        """
        ...

    def write_draft(self) -> None:
        """On the forward stream: writes KV of the draft that waits to be written. See WriteDraft."""
        ...


MakeLaunches = Callable[[Device], Launches]


@dataclass(eq=False)
class PlainLaunch(Launch):
    """What its segments pass on."""

    input: ModelInput | None = None
    logits_LV: Tensor | None = None


class PlainLaunches:
    """Launches without a draft: the host knows the lengths behind each."""

    def __init__(self, device: Device) -> None:
        assert device.runner.draft is None, "a model with a draft has launches of its own"
        self._device = device
        self._shipping = Shipping(device)

    def no_rows(self) -> ScheduleBatch:
        """A batch without rows."""
        return ScheduleBatch.of((), self._device.kv.device)

    def applied(self, plan: Plan, running: ScheduleBatch) -> None:
        """Nothing more is to be done."""

    def is_ready(self, running: ScheduleBatch) -> bool:
        """The lengths are always known."""
        return True

    def num_tokens(self, plan: Plan) -> int:
        """Those of its chunks, and one of each row."""
        return tokens_of(plan, 1)

    def write_draft(self) -> None:
        """There is none."""

    def enqueue(self, plan: Plan, running: ScheduleBatch, step: StepShape) -> PlainLaunch:
        """Enqueues the three segments."""
        device = self._device
        running.advance()
        launch = PlainLaunch(
            plan.ticket, owners_drawn(plan, running), Relay.of(plan, running), plan.ships, step, asked_of(plan, running)
        )
        try:
            if device.debug:
                running.check_mirrors()
            batch = ForwardBatch.init_new(plan.chunks, running, device.page_table, device.kv.layout.page_size)
            launch.batch = replace(batch, seeds_3S=seeds_of(plan, device.kv.device))
            launch.check_size(device)
            if plan.ships:
                self._shipping.prepare(launch, plan.chunks)
        except Exception as error:  # noqa: BLE001 - a launch that cannot be built fails only its own rows
            launch.batch, launch.error = None, error
        launch.copy_done = device.enqueue([self.resolve, self.compute, self.sample], launch)
        return launch

    # ---- segments: on the forward stream ----

    def resolve(self, launch: PlainLaunch) -> None:
        """Replaces sentinels by the tokens that the launch before has stashed."""
        if launch.batch is None:
            return
        with failures_of(launch):
            inp = launch.batch.input
            resolved_T = self._device.future_map.resolve_future(inp.input_ids_T, launch.batch.decode_owners_D)
            launch.input = replace(inp, input_ids_T=resolved_T, step=launch.step)

    def compute(self, launch: PlainLaunch) -> None:
        """Runs the model: without inputs on padding, because other ranks may compute with this one."""
        device = self._device
        with failures_of_target(launch, device):
            device.check_group()
            if launch.input is None:
                device.runner.forward(launch.padding(device), device.kv)
                return
            on_layer = partial(self._shipping.layer_written, launch) if launch.ships else None
            launch.logits_LV = device.runner.forward(launch.input, device.kv, on_layer)
            if device.forward_clock is not None:
                launch.computed_at = device.forward_clock.now()

    def sample(self, launch: PlainLaunch) -> None:
        """Draws tokens and stashes them for the next launch."""
        (rows_L, owners_L, _), future_map, histories = launch.relay, self._device.future_map, self._device.histories
        if launch.logits_LV is not None and launch.batch is not None:
            with failures_of(launch):
                sampling = launch.batch.sampling
                history_NT = histories.begin(sampling.rules, launch.batch.seeds_3S)
                tokens_L, logprobs_NW = sample_scored(launch.logits_LV, sampling, history_NT)
                if history_NT is not None and rows_L.numel():
                    histories.write(rows_L, sampling.position_L, tokens_L)
                # The next launch is enqueued already and must not read NOT_A_TOKEN.
                future_map.stash(rows_L, tokens_L.clamp(min=0), owners_L)
                launch.tokens_L = self._device.forward.to_host(tokens_L)
                if logprobs_NW is not None:
                    launch.logprobs = self._device.forward.to_host(logprobs_NW.flatten())
        launch.input = launch.logits_LV = None
        if launch.error is not None:
            # The next launch is enqueued already, and other rows may be in it. They must not fail because these
            # rows hold no token. Tokens drawn from the zeros are ignored.
            future_map.stash(rows_L, torch.zeros_like(rows_L), owners_L)
