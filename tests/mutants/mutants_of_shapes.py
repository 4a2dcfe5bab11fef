"""Sabotages of the shapes of launches: what a worker runs before it is ready, what a graph takes, how much a launch
computes."""

from tests.mutants.mutant import Mutant

GRAPHS_OF_RANKS = "tests/model/test_graphs_ranks.py"
AGREEMENT = "tests/scheduler/test_agreement.py"
LENGTHS = "tests/model/test_graphs_lengths.py"
UNIFIED = "tests/unified/test_worker_speculation.py"
REQUESTS = "tests/scheduler/execution/test_warm_requests.py"

WARM = (
    Mutant(
        "the first requests are greedy and no others",
        "WarmUp.of",
        "tuple(KINDS.values())",
        "(GREEDY,)",
        "the first one with top-p loads kernels in the serving loop",
        tests=(REQUESTS,),
    ),
    Mutant(
        "the first requests draw with one row only",
        "WarmUp.of",
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

LENGTHS_OF_GRAPHS = (
    Mutant(
        "decodes of short contexts have no graph of their own",
        "Graphs._lengths",
        "at_once and at_once < longest",
        "False",
        "attention takes a large batch several passes over each layer, although its contexts are short",
        tests=(LENGTHS,),
    ),
    Mutant(
        "the graph of one pass takes contexts of any length",
        "Graphs.replay",
        "inp.max_decode_seq_len <= length",
        "True",
        "the splits of long contexts are written behind the scratch memory",
        tests=(LENGTHS,),
    ),
    Mutant(
        "one pass takes contexts as long as those of one decode",
        "TritonAttention.longest_at_once",
        "self.max_splits // max(1, num_decodes)",
        "self.max_splits",
        "a graph that was captured for one pass has several",
        tests=(LENGTHS,),
    ),
    Mutant(
        "contexts longer than those that were captured have a graph",
        "Graphs.replay",
        "only_decodes and num_lanes <= self._sizes[-1] and has_masks and is_short",
        "only_decodes and num_lanes <= self._sizes[-1] and has_masks",
        "no graph fits",
        tests=(LENGTHS,),
    ),
)

BESIDE_PROMPTS = (
    Mutant(
        "a rank with a prompt pads to its own tokens beside graphs",
        "Graphs.beside_graphs",
        "step._replace(num_tokens=(size,) * self._collectives.size)",
        "step",
        "ranks gather tensors of different sizes",
        tests=(GRAPHS_OF_RANKS,),
    ),
    Mutant(
        "a rank that scores a prompt does not pad beside graphs",
        "GraphedRunner.hidden",
        "self._graphs.beside_graphs(inp)",
        "inp",
        "ranks gather tensors of different sizes",
        tests=(GRAPHS_OF_RANKS,),
    ),
    Mutant(
        "a prompt takes the graphs from all ranks",
        "wants_graph",
        "not has_chunks or num_tokens * num_ranks <= PADDED_ROWS",
        "not has_chunks",
        "all decode eagerly although the padding costs nothing",
        tests=(AGREEMENT,),
    ),
    Mutant(
        "all ranks pad to a long prompt",
        "wants_graph",
        "num_tokens * num_ranks <= PADDED_ROWS",
        "True",
        "the MLP computes many rows of padding",
        tests=(AGREEMENT,),
    ),
    Mutant(
        "ranks that may replay graphs compare tags",
        "TorchCollectives._call",
        "self._debug and not step.graphs",
        "self._debug",
        "the rank with a prompt waits for tags that a replay does not send",
        tests=("tests/model/test_collectives.py",),
    ),
)
