"""`python bench/asks/steps.py MODEL KIND BATCH ASKING CONTEXT STEPS ROUNDS`: the CPU time of decode steps.

ASKING of BATCH requests are of the kind, the others are greedy. All runs on one thread. The program prints "ready".
Then it runs a round of STEPS for each line that it reads, and prints microseconds of CPU time a step. PYTHONPATH names
the checkout that is measured. It may be an earlier commit, so this uses nothing new.
"""

import sys
import time

import torch

from bench.overlap.decoding import PAGE_SIZE, WARM_STEPS, Plan, executor_of, planner_of
from bench.overlap.kinds import GREEDY, KINDS
from model.runner import ModelRunner
from protocol.messages_gateway import TO_GATEWAY, Assign
from runtime.clock import MonotonicClock
from scheduler.execution.streams import InlineStream
from unified.worker import UnifiedWorker


def begun(model: str, name: str, batch: int, asking: int, plan: Plan) -> UnifiedWorker:
    """A worker whose requests all decode."""
    kind = next(each for each in KINDS if each.name == name)
    runner = ModelRunner.load(model, device="cpu", page_size=PAGE_SIZE)
    executor = executor_of(runner, batch, plan.max_context, InlineStream())
    worker = UnifiedWorker(planner_of(executor), "bench", MonotonicClock(), overlap=True, chunk_size=1 << 20)
    for index in range(batch):
        params = (kind if index < asking else GREEDY).params(plan.num_tokens)
        prompt = tuple((31 * index + place) % 500 + 1 for place in range(plan.context))
        request = Assign(f"r{index}", 0, prompt, params, num_choices=1, prefill=None)
        worker.on_gateway(request)

    while worker.stats().waiting:
        worker.step()
    for _ in range(WARM_STEPS):
        worker.step()
    return worker


def cpu_us(worker: UnifiedWorker, steps: int) -> float:
    """Microseconds of this thread's CPU time in a step. Messages are encoded, as in a worker's loop."""
    start = time.thread_time()
    for _ in range(steps):
        worker.step()
        for message in worker.outbox.gateway:
            TO_GATEWAY.encode(message)
        worker.outbox.gateway.clear()
    return (time.thread_time() - start) / steps * 1e6


def main() -> int:
    """Exit status 0, when the input ends."""
    model, name, *numbers = sys.argv[1:]
    batch, asking, context, steps, rounds = map(int, numbers)
    torch.set_num_threads(1)
    worker = begun(model, name, batch, asking, Plan(context, steps, rounds))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(cpu_us(worker, steps), flush=True)
    assert worker.stats().running == batch, "no request has ended: every step had the whole batch"
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
