"""Sabotages of the shapes of launches: what a worker runs before it is ready, what a graph takes, how much a launch
computes."""

from tests.mutants.mutant import Mutant

UNIFIED = "tests/unified/test_worker_speculation.py"
REQUESTS = "tests/scheduler/execution/test_warm_requests.py"

WARM = (
    Mutant(
        "the first requests are greedy and no others",
        "warm_requests",
        "KINDS.values()",
        "[GREEDY]",
        "the first one with top-p loads kernels in the serving loop",
        tests=(REQUESTS,),
    ),
    Mutant(
        "the first requests draw with one row only",
        "sizes_for",
        "tuple(sorted({1, most}))",
        "(1,)",
        "a large batch takes kernels that are not loaded",
        tests=(REQUESTS,),
    ),
    Mutant(
        "no prompt is scored before the first request",
        "scheduler/execution/warm_requests.py _plans",
        "Scores(1, ids[1:], MAX_TOP_LOGPROBS) if length > 1 else None",
        "None",
        "the first request with prompt_logprobs loads kernels in the serving loop",
        tests=(REQUESTS,),
    ),
    Mutant(
        "the draft proposes nothing before the first request",
        "scheduler/execution/warm_requests.py _plans",
        "shape.num_steps",
        "0",
        "the first launch that proposes loads kernels in the serving loop",
        tests=(REQUESTS,),
    ),
    Mutant(
        "no mask is drawn with before the first request",
        "_draw_masked",
        "sample_scored(...)",
        "pass",
        "the first answer in a grammar loads kernels in the serving loop",
        tests=(REQUESTS,),
    ),
    Mutant(
        "the rows of the first requests stay",
        "warm_requests",
        "Plan(0, leaves=tuple(range(1, joined + 1)))",
        "Plan(0, joined)",
        "the first plan has other rows than the planner",
        tests=(REQUESTS,),
    ),
    Mutant(
        "page 0 keeps what the first requests have written",
        "_on_forward_stream",
        "clear_padding(executor.kv)",
        "pass",
        "padding lanes read numbers that nobody knows",
        tests=(REQUESTS,),
    ),
)

BUDGETS = (
    Mutant(
        "a decode counts as one token whatever a draft verifies",
        "Speculation.most_tokens",
        "num_rows * self.shape.num_computed",
        "num_rows",
        "a launch computes several times its budget",
        tests=(UNIFIED,),
    ),
    Mutant(
        "what decodes verify leaves prompts their whole budget",
        "unified/worker.py UnifiedWorker.launch",
        "decode_tokens if self._policies.enable_mixed_chunk else 0",
        "0",
        "a launch computes more than its budget",
        tests=(UNIFIED,),
    ),
)
