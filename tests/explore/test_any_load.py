"""Any arrivals, departures, sizes and topology, any schedule: with overlap, without it, and by the plain reference the
tokens are the same; invariants hold at every step, and nothing is left at the end."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.messages_gateway import SamplingParams
from tests.answers import Answer
from tests.decode.driving import VOCAB, prompt_of
from tests.doubles.strategies import Strategy
from tests.explore.exploring import STRATEGIES
from tests.explore.invariants import check_invariants
from tests.explore.run import Run
from tests.explore.workload import CONTEXT, HOT, TOPOLOGIES, Arrival, Workload

MAX_REQUESTS = 8


class AnyLoad(RuleBasedStateMachine):
    """`Run.finish`, at the end, compares every token with the reference; then the serial twin takes the same load."""

    run: Run

    @initialize(
        topology=st.sampled_from(TOPOLOGIES),
        strategy=st.sampled_from(STRATEGIES),
        page_size=st.sampled_from((1, 4, 16)),
        chunk_size=st.sampled_from((5, 9, 64)),
        spare=st.floats(0, 2),
        max_requests=st.integers(3, 6),
        num_steps=st.sampled_from((None, 0, 1, 3)),
        tree=st.sampled_from(((1, 0), (2, 3), (3, 4))),
        num_layers=st.integers(1, 3),
        seed=st.integers(0, 2**32),
    )
    def deployment(
        self,
        topology: str,
        strategy: Strategy,
        page_size: int,
        chunk_size: int,
        spare: float,
        max_requests: int,
        num_steps: int | None,
        tree: tuple[int, int],
        num_layers: int,
        seed: int,
    ) -> None:
        """One request must fit: CONTEXT tokens, and again what its other choices have of their own."""
        num_pages = 1 + int((2 + spare) * CONTEXT / page_size)
        workload = Workload(topology, page_size, chunk_size, num_pages, max_requests, overlap=True, arrivals=())
        if num_layers > 1 and tree[0] == 1 and num_steps:
            workload = replace(workload, num_layers=num_layers)
            num_steps = min(num_steps, num_layers)
        workload = replace(workload, num_steps=num_steps, tree=tree)
        self.run = Run(workload, strategy, seed)
        self.run.start()

    @precondition(lambda self: len(self.run.arrived) < MAX_REQUESTS)
    @rule(
        length=st.integers(1, 30),
        max_tokens=st.integers(1, 12),
        min_tokens=st.integers(0, 3),
        num_choices=st.integers(1, 3),
        temperature=st.sampled_from((0.0, HOT)),
        num_eos=st.sampled_from((0, 12, 60)),
    )
    def arrive(
        self, length: int, max_tokens: int, min_tokens: int, num_choices: int, temperature: float, num_eos: int
    ) -> None:
        """A request comes."""
        name = f"request {len(self.run.arrived)}"
        params = SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min(min_tokens, max_tokens),
            temperature=temperature,
            seed=length,
            eos_token_ids=tuple(range(0, VOCAB, VOCAB // num_eos))[:num_eos] if num_eos else (),
        )
        at = self.run.num_steps
        self.run.arrive(Arrival(name, at, tuple(prompt_of(f"{name} {length}", length)), params, num_choices))

    @precondition(lambda self: len(self.run.left) < len(self.run.arrived))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A client leaves, or gives up one choice."""
        index = data.draw(st.sampled_from([i for i, a in enumerate(self.run.arrived) if a.name not in self.run.left]))
        arrival = self.run.arrived[index]
        choice = data.draw(st.integers(-1, arrival.num_choices - 1))
        left = replace(arrival, cancel_at=self.run.num_steps - arrival.at_step, cancel_choice=choice)
        self.run.arrived[index] = left
        self.run.leave(left)

    @rule(num_steps=st.integers(1, 12))
    def go_on(self, num_steps: int) -> None:
        """Time passes."""
        for _ in range(num_steps):
            self.run.step()

    @invariant()
    def holds(self) -> None:
        """Also between steps."""
        if hasattr(self, "run"):
            check_invariants(self.run.cluster)

    def teardown(self) -> None:
        """To the end; then the same load again without overlap."""
        if not hasattr(self, "run"):
            return
        self.run.finish()
        load = self.run.workload.without_overlap()
        serial = Run(replace(load, arrivals=tuple(self.run.arrived)), Strategy.IN_ORDER, 0)
        serial.run()
        for key, answer in self.run.cluster.answers.items():
            assert _agree(answer, serial.cluster.answers[key]), f"{key}: {answer}, without overlap {serial}"


def _agree(one: Answer, other: Answer) -> bool:
    """The same tokens, as far as both were sent: who leaves is told more by one than by the other."""
    shorter = min(len(one.ids), len(other.ids))
    is_same = one.ids[:shorter] == other.ids[:shorter]
    return is_same and (not (one.finish and other.finish) or (one.ids, one.finish) == (other.ids, other.finish))


TestAnyLoad = pytest.mark.slow(AnyLoad.TestCase)
TestAnyLoad.settings = settings(max_examples=40, stateful_step_count=20)
