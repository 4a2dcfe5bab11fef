"""A choice that is spilled again and again, whose draft a rest takes: its executor is modelled, token by token."""

import random
from collections import deque

import pytest

from protocol.messages_gateway import FinishReason
from scheduler.plan import Done, Owner, Plan, StepResult
from tests.scheduler.building import greedy, make_req, prompt_chunk
from tests.scheduler.remembering import make

PROMPT = (1, 2, 3, 4, 5)
OUTPUTS = list(range(50, 70))


class Modelled:
    """One choice at a planner, with an executor whose draft has three layers. It draws OUTPUTS, each from those before
    it, and knows how many tokens of its KV are written."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.planner, self.executor = make(lookahead=3, num_host_pages=16)
        self.req = make_req(PROMPT, greedy(len(OUTPUTS)))
        self.results = deque[tuple[int, Owner, tuple[int, ...]]]()  # of the launches in flight
        self.num_drawn = 1
        self.num_spilled_undrawn = 0  # spills of a choice without a draft that had outputs to draw once more
        assert self.planner.admit([self.req], len(PROMPT), grows=True)
        launched = self.planner.launch(prompt_chunk(self.req))
        self.results.append((launched.ticket, self.req.held.owner, (OUTPUTS[0],)))
        self.planner.join([self.req])
        self.end_launch()

    def launch(self) -> None:
        """The choice joins with known tokens and written KV, or goes on where the launch before has ended."""
        assert self.planner.make_room() == []
        decodes = self.planner.decodes()
        if not decodes:
            return
        launched = self.planner.launch((), decodes)
        plan = self.executor.plan
        for join in plan.joins:
            assert join.seq_len <= len(PROMPT) + self.num_drawn - 1, "KV that nothing has written is read"
            self.num_drawn = join.seq_len - len(PROMPT) + 1
            assert join.input_id == OUTPUTS[self.num_drawn - 1]
        most = 1 + plan.num_steps if self.req.held.has_draft else 1
        run = OUTPUTS[self.num_drawn : self.num_drawn + self.rng.randint(1, most)]
        self.num_drawn += len(run)
        self.results.append((launched.ticket, self.req.held.owner, tuple(run)))

    def end_launch(self) -> None:
        """The oldest launch is over."""
        if not self.results:
            return
        ticket, owner, run = self.results.popleft()
        self.executor.outcomes.append(StepResult(ticket, (owner,), (run,)))
        ((launched, result),) = self.planner.poll()
        for req, new in self.planner.results.take(launched, result):
            if req.finish is None:
                req.append(new)

    def spill(self) -> None:
        if self.req.holding is not None:
            is_undrawn = not self.req.held.has_draft and self.planner.spills.num_redrawn(self.req) > 0
            self.num_spilled_undrawn += self.planner.spill(self.req) and is_undrawn

    def end_copy(self) -> None:
        """The newest copy is over. There is room for the choice on the device."""
        if self.planner.spills.away:
            copies = [operation for operation in self.executor.sent if not isinstance(operation, Plan)]
            self.executor.outcomes.append(Done(copies[-1].ticket))  # type: ignore[union-attr]
            self.planner.poll()
            self.planner.make_room()

    def rest(self) -> None:
        """The draft rests from now on, in one of three cases."""
        if self.rng.random() < 0.3:
            self.planner.speculation.rests = True
            self.planner.kv_manager.forget_drafts()

    def run(self) -> None:
        actions = (
            self.launch,
            self.launch,
            self.end_launch,
            self.end_launch,
            self.end_copy,
            self.end_copy,
            self.spill,
            self.rest,
        )
        while self.req.finish is None:
            self.rng.choice(actions)()
        while self.results:
            self.end_launch()


@pytest.mark.parametrize("seeds", [range(100), range(100, 200)])
def test_a_choice_that_is_spilled_again_draws_every_output_once(seeds: range) -> None:
    num_spilled_undrawn = 0
    for seed in seeds:
        modelled = Modelled(seed)
        modelled.run()
        req, spills = modelled.req, modelled.planner.spills
        assert req.outputs == OUTPUTS and req.finish is FinishReason.LENGTH, seed
        modelled.planner.release(req)
        assert not spills.redraws and not spills.away and spills.num_redrawn(req) == 0
        num_spilled_undrawn += modelled.num_spilled_undrawn
    assert num_spilled_undrawn > 9, "the draft was hardly ever taken between two spills"
