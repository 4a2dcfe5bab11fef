"""Sabotages of what the ranks of a group compute together: the MLPs of the model, and graphs of whole forwards."""

from tests.mutants.mutant import Mutant

MLP = "tests/model/test_mlp.py"
HOST = "tests/model/test_collectives_host.py"
CALLS = "tests/model/test_collectives.py"
GRAPHS = "tests/model/test_graphs_ranks.py"

MLPS = (
    Mutant(
        "ranks put all values into one half",
        "HostCollectives._pass",
        "self._num_rounds % 2",
        "0",
        "a rank that is ahead overwrites what another one still takes",
        tests=(HOST,),
    ),
    Mutant(
        "ranks of a host do not compare their calls",
        "HostCollectives._meet",
        "any(theirs != word for theirs in heard.values())",
        "False",
        "a rank computes with values of another layer",
        tests=(CALLS,),
    ),
    Mutant(
        "a rank takes what was meant for the first one",
        "HostCollectives.exchange",
        "self._call(EXCHANGE, parts_RPE, self.rank, step)",
        "self._call(EXCHANGE, parts_RPE, 0, step)",
        "its tokens get the parts of others",
        tests=(CALLS,),
    ),
    Mutant(
        "a rank adds its own part first",
        "ShardedMlp._together",
        "__parts[:, :num_own]",
        "__parts.roll(-self.collectives.rank, 0)[:, :num_own]",
        "what a request gets depends on the rank that it is on",
        tests=(MLP,),
    ),
    Mutant(
        "padding is computed",
        "without_padding",
        "min(counts) == padded_RPE.shape[1]",
        "True",
        "each rank computes as many tokens as the busiest",
        tests=(MLP,),
    ),
    Mutant(
        "each rank adds the bias",
        "ShardedMlp._total",
        "total_TE + self.down_bias_E",
        "total_TE + self.down_bias_E * parts_RTE.shape[0]",
        "it is added as often as there are ranks",
        tests=(MLP,),
    ),
    Mutant(
        "an idle rank returns before its gather",
        "ShardedMlp._together",
        "padded_PE = F.pad(...)",
        "if not num_own:\n    return x_TE\npadded_PE = F.pad(...)",
        "the others wait for it",
        tests=(MLP,),
    ),
    Mutant(
        "parts are added in the dtype of the model",
        "ShardedMlp._total",
        "parts_RTE[0].float()",
        "parts_RTE[0]",
        "each addition rounds",
        tests=(MLP,),
    ),
    Mutant(
        "each rank replays the graph of its own size",
        "Graphs.replay",
        "inp.step.padded",
        "num",
        "the ranks exchange tensors of different sizes",
        tests=(GRAPHS,),
    ),
    Mutant(
        "a rank whose graphs fail tells nobody",
        "Graphs._agreed",
        "agree(...)",
        "error is None",
        "it computes what the others replay",
        tests=(GRAPHS,),
    ),
    Mutant(
        "a rank holds the first share of an MLP whatever its number",
        "Weights._mlp",
        "Part(dim, ranks.rank * size, size)",
        "Part(dim, 0, size)",
        "the other shares are computed by nobody",
        tests=("tests/model/test_runner_ranks.py",),
    ),
    Mutant(
        "a draft is shared, too",
        "model/mtp.py load_mtp",
        "Weights(checkpoint, config.layer, __dtype, __device, pack)",
        "Weights(checkpoint, config.layer, __dtype, __device, pack, target.layers[0].mlp.collectives)",
        "ranks that propose different numbers of tokens wait for each other",
        tests=("tests/model/test_runner_ranks.py",),
    ),
    Mutant(
        "a clock ends the list of launches that a group times",
        "_fastest",
        "is_alone and done > 1 and __late",
        "done > 1 and __late",
        "a slow rank launches less than the others",
        tests=("tests/scheduler/planning/test_speculation.py",),
    ),
)
