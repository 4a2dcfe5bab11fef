"""How an executor launches plans: the interface, and launches without a draft.

    resolve, compute, sample      one sequence; the next launch is prepared meanwhile
    resolve, compute | sample     with grammars: the masks are made meanwhile; `sample` follows when they are there

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
from model.sampling_input import AllowedTokens
from protocol.messages_group import StepShape
from scheduler.execution.answers import Masking
from scheduler.execution.batches import ForwardBatch, ScheduleBatch
from scheduler.execution.device import Device
from scheduler.execution.launch import Launch, failures_of, failures_of_target
from scheduler.execution.prompt_scores import scored_forward
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

    def is_ready(self, plan: Plan, running: ScheduleBatch, masking: Masking | None) -> bool:
        """Whether all is known that `enqueue` needs for `plan`, so that it does not wait: the lengths of `running`, and
        with a draft the masks of the launch."""
        ...

    def num_tokens(self, plan: Plan) -> int:
        """Tokens that the target computes in the launch of `plan`."""
        ...

    def enqueue(self, plan: Plan, running: ScheduleBatch, step: StepShape, masking: Masking | None) -> Launch:
        """Enqueues the launch of `plan`, which is applied. `step` is what all ranks of the group launch. `masking`: of
        its rows with grammars.

        If no inputs can be built, the launch fails; the target then computes as many tokens of padding.
        """
        ...

    def sample_masked(self, launch: Launch) -> bool:
        """Enqueues what of the newest launch has waited for its masks, if they are there. Whether nothing waits."""
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
    allowed: AllowedTokens | None = None  # what its masks allow

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that its segments read."""
        return (*super().tensors, *(self.allowed or ()))


class PlainLaunches:
    """Launches without a draft, or of rows that have none: the host knows the lengths behind each."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._shipping = Shipping(device)

    def no_rows(self) -> ScheduleBatch:
        """A batch without rows."""
        return ScheduleBatch.of((), self._device.kv.device)

    def applied(self, plan: Plan, running: ScheduleBatch) -> None:
        """Nothing more is to be done."""

    def is_ready(self, plan: Plan, running: ScheduleBatch, masking: Masking | None) -> bool:
        """The lengths are always known, and `sample` alone needs masks."""
        return True

    def num_tokens(self, plan: Plan) -> int:
        """Those of its chunks, and one of each row."""
        return plan.num_tokens(1)

    def write_draft(self) -> None:
        """There is none."""

    def enqueue(self, plan: Plan, running: ScheduleBatch, step: StepShape, masking: Masking | None) -> PlainLaunch:
        """Enqueues the three segments, or the two that need no masks."""
        device = self._device
        running.advance()
        launch, page_size = PlainLaunch.of(plan, running, step, masking), device.kv.layout.page_size
        batch = partial(ForwardBatch.init_new, plan.chunks, running, device.page_table, page_size)
        launch.build(plan, running, device, batch, self._shipping.prepare)
        if masking is None:
            launch.copy_done = device.enqueue([self.resolve, self.compute, self.sample], launch)
        else:
            device.enqueue([self.resolve, self.compute], launch)
        return launch

    def sample_masked(self, launch: Launch) -> bool:
        """Enqueues the third segment. The next launch comes behind it, because it reads the tokens."""
        masking = launch.masking
        if launch.copy_done is not None:
            return True
        assert isinstance(launch, PlainLaunch) and masking is not None, "only masks hold a launch back"
        if not masking.is_done:
            return False
        try:
            launch.allowed = masking.allowed(lambda index: index, self._device.kv.device)
        except Exception as error:  # noqa: BLE001 - masks that cannot be made fail only this launch's rows
            launch.error = launch.error or error
        launch.copy_done = self._device.enqueue([self.sample], launch)
        return True

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
            scored = launch.batch.scored if launch.batch is not None else None
            if scored is None:
                launch.logits_LV = device.runner.forward(launch.input, device.kv, on_layer)
            else:
                launch.logits_LV, _, words = scored_forward(device.runner, launch.input, device.kv, on_layer, scored)
                launch.prompt_words = device.forward.to_host(words)
            if device.forward_clock is not None:
                launch.computed_at = device.forward_clock.now()

    def sample(self, launch: PlainLaunch) -> None:
        """Draws tokens and stashes them for the next launch."""
        (rows_L, owners_L, _), future_map, histories = launch.relay, self._device.future_map, self._device.histories
        has_masks = launch.masking is None or launch.allowed is not None
        if launch.logits_LV is not None and launch.batch is not None and has_masks:
            with failures_of(launch):
                sampling = replace(launch.batch.sampling, allowed=launch.allowed)
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
