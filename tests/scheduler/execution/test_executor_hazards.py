"""Mistakes that overlap schedulers are known to make, one test each. docs/exploring.md lists where others are."""

from dataclasses import replace
from typing import Any

import pytest

from model.inputs import ModelInput
from protocol.messages_gateway import SamplingParams
from tests.decode.driving import VOCAB, Driven, greedy, make_cluster, prompt_of, reference
from tests.doubles.hash_model import FakeRunner
from tests.doubles.strategies import Strategy
from tests.doubles.streams_simulated import Simulation
from tests.explore.exploring import STRATEGIES

Load = dict[str, tuple[list[int], SamplingParams]]


def run(topology: str, load: Load, strategy: Strategy, **more: Any) -> tuple[Driven, list[ModelInput]]:
    """All requests at once, to the end; the inputs of every forward."""
    seen: list[ModelInput] = []
    simulation = Simulation(strategy, 7)
    runner = FakeRunner(vocab_size=VOCAB, context_length=256, before_forward=lambda inp: seen.append(inp))
    cluster = make_cluster(topology, runner, streams=simulation.streams, **more)
    for name, (prompt, params) in load.items():
        cluster.ask(name, prompt, params)
    while not cluster.at_rest():
        if not cluster.turn():
            simulation.run_one()
    cluster.expect_end()
    return cluster, seen


def ends_early(name: str, length: int = 6) -> tuple[list[int], SamplingParams]:
    """A request that EOS ends at its fourth token, so that a redundant forward of it is in flight when it ends."""
    prompt = prompt_of(name, length)
    tokens, _ = reference(prompt, greedy(12))
    return prompt, replace(greedy(12), eos_token_ids=(tokens[3],), min_tokens=4)


@pytest.mark.parametrize("topology", ["1U", "1P1D"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_row_reused_the_step_after_its_owner_finished(strategy: Strategy, topology: str) -> None:
    """On a decode worker the next owner is PREBUILT: no forward of the former one may write its row afterwards."""
    load = {name: ends_early(name) for name in ("a", "b", "c")}
    cluster, seen = run(topology, load, strategy, max_requests=1, num_pages=6)
    planner = cluster.workers[-1].planner  # of the worker that decodes
    assert planner.kv_manager.rows.owner_number(1) == 3  # one row, three owners
    assert sum(inp.num_decodes for inp in seen) > 3 * 3  # each was in a forward more than it has decoded tokens


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_allocator_under_overlap_never_reads_a_sentinel(page_size: int) -> None:
    load = {name: ends_early(name, 17) for name in "abcd"}
    _, seen = run("1U", load, Strategy.LATE, page_size=page_size, num_pages=1 + 64 // page_size)
    assert all(int(inp.slots_T.min()) >= page_size for inp in seen)  # page 0 is nobody's
    assert all(int(inp.input_ids_T.min()) >= 0 for inp in seen)


def test_a_layer_does_not_leave_before_its_mark() -> None:
    simulation = Simulation(Strategy.LATE, 0)
    cluster = make_cluster("1P1D", streams=simulation.streams)
    cluster.ask("a", 20, greedy(4))
    worker = cluster.prefills[100]
    executor = cluster.executor(worker)
    while not (executor.launches and executor.launches[0].layers):
        if not cluster.turn():
            simulation.run_one()
    cluster.turn()  # the layer's KV is computed, and its mark is not reached
    assert executor.launches[0].layers and not executor.launches[0].layers[0].event.done()
    assert not worker.planner.in_flight[0].layers and worker._sender.counters.get("frames", 0) == 0
    while worker.planner.in_flight:
        if not cluster.turn():
            simulation.run_one()
    assert worker._sender.counters["frames"] > 0
