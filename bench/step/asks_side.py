"""`python bench/step/asks_side.py MODEL KIND BATCH ASKING CONTEXT STEPS ROUNDS`: the CPU time of decode steps.

ASKING of BATCH requests are of the kind, the others are greedy. All runs on one thread. For each line that it reads it
runs STEPS, and prints microseconds of CPU time a step. PYTHONPATH names the checkout that is measured, which may be an
earlier commit with the files of bench/ of this one.
"""

import sys
from time import thread_time

import torch

from bench.child import answer_all
from bench.step.decoding import PAGE_SIZE, AtOnce, Decoding, Plan, executor_of
from bench.step.kinds import KINDS
from model.runner import ModelRunner
from runtime.clock import ThreadWorkClock


def main() -> None:
    """Ends with its input."""
    model, name, *numbers = sys.argv[1:]
    batch, asking, context, steps, rounds = map(int, numbers)
    torch.set_num_threads(1)
    plan, kind = Plan(context, steps, rounds), next(known for known in KINDS if known.name == name)
    runner, stream = ModelRunner.load(model, device="cpu", page_size=PAGE_SIZE), AtOnce(thread_time)
    executor = executor_of(runner, batch, plan.max_context, stream)
    decoding = Decoding.on(executor, stream, ThreadWorkClock(), overlap=True)
    decoding.start(batch, context, plan.num_tokens, kind, num_of=asking)

    def microseconds(_: object) -> float:
        step_s = decoding.run(steps)
        assert decoding.num_running == batch, "no request has ended: every step had the whole batch"
        return step_s * 1e6

    answer_all(microseconds)


if __name__ == "__main__":
    main()
