"""The operations that an executor was sent are all that it needs: replayed from empty they give the same results."""

from dataclasses import replace

import pytest

from model.fake import FakeRunner
from scheduler.draft_shape import DraftShape
from scheduler.plan import OPERATIONS, Plan, StepResult
from tests.decode.driving import VOCAB
from tests.doubles.strategies import Strategy
from tests.explore.encoded import replayed
from tests.explore.run import Run
from tests.explore.workload import Workload


@pytest.mark.parametrize("seed", range(10))
def test_recorded_operations_give_the_same_tokens_again(seed: int) -> None:
    """Of workers that compute all KV that they read. What a decode worker reads comes from elsewhere."""
    workload = replace(Workload.random(seed), failing=0.0)
    run = Run(workload, Strategy.RANDOM, seed).run()
    num_tokens = 0
    for encoded in run.executors:
        if any(encoded.executor is run.cluster.executor(worker) for worker in run.cluster.decodes.values()):
            continue
        draft_seed = None if workload.num_steps is None else 1
        layers = workload.num_layers
        runner = FakeRunner(vocab_size=VOCAB, context_length=256, draft_seed=draft_seed, num_draft_layers=layers)
        shape = DraftShape(workload.num_steps or 0, *workload.tree)
        again = replayed(encoded.sent, runner, encoded.executor, shape)
        assert again == encoded.results
        num_tokens += sum(len(tokens) for result in again for tokens in result.tokens)
        num_plans = sum(isinstance(OPERATIONS.decode(raw), Plan) for raw in encoded.sent)
        assert num_plans == len(again) and all(isinstance(result, StepResult) for result in again)
    assert num_tokens >= len(workload.arrivals) // 2
