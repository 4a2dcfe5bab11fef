"""Sabotages of what a forward on a CPU computes with: products, all layers in one call, wanted rows, threads."""

from tests.mutants.mutant import Mutant

PRODUCTS = "tests/model/test_cpu_products.py"
LAYERS = "tests/model/test_cpu_layers.py"
RUNNER = "tests/model/test_runner.py"
MLP = "tests/model/test_mlp.py"
CHOICE = "tests/scheduler/execution/test_thread_choice.py"
BOOT = "tests/worker/test_boot.py"
STREAMS = "tests/scheduler/execution/test_streams.py"
POLICIES = "tests/worker/test_policies.py"

ON_A_CPU = (
    Mutant(
        "weights are packed output by output",
        "pack_bfloat16",
        "__view.transpose(1, 2)",
        "__view",
        "each sum mixes the weights of other outputs",
        tests=(PRODUCTS,),
    ),
    Mutant(
        "a residual is not added",
        "Bfloat16Linear.added_to",
        "residual_TO.contiguous()",
        "None",
        "a layer forgets what came before it",
        tests=(PRODUCTS,),
    ),
    Mutant(
        "a chunk runs in one call",
        "is_decodes",
        "not plan.extends",
        "True",
        "its attention reads the row of each request's first token",
        tests=(LAYERS,),
    ),
    Mutant(
        "a forward in one call reports no layers",
        "Decoder._layers",
        "on_layer is None",
        "True",
        "no layer of a prompt of one token is ever sent",
        tests=(LAYERS,),
    ),
    Mutant(
        "the last layer takes the first rows for the wanted ones",
        "LayerPass.run",
        "attended_TN.index_select(0, wanted_L)",
        "attended_TN[: wanted_L.numel()]",
        "a prompt's next token comes from its first one",
        tests=(RUNNER,),
    ),
    Mutant(
        "a layer's output is normed with its own weight, not with the next layer's",
        "LayerPass.run",
        "layer.mlp.added_norm(x_TE, normed_TE, passes, self.step, next_norm_E)",
        "layer.mlp.added_norm(x_TE, normed_TE, passes, self.step, layer.mlp_norm_E)",
        "every layer reads wrong inputs",
        tests=(LAYERS,),
    ),
    Mutant(
        "an oneDNN product forgets the residual stream before a norm",
        "PackedLinear.added_norm",
        "self.added_to(residual_TO, x_TI)",
        "self(x_TI)",
        "a layer forgets what came before it",
        tests=(RUNNER,),
    ),
    Mutant(
        "a bfloat16 product forgets the residual stream before a norm",
        "Bfloat16Linear.added_norm",
        "self.added_to(residual_TO, x_TI)",
        "self(x_TI)",
        "a layer forgets what came before it",
        tests=(PRODUCTS,),
    ),
    Mutant(
        "the norm is that of the residual stream before the addition",
        "TorchPasses.added_norm",
        "self.rms_norm(sum_TE, weight_E)",
        "self.rms_norm(residual_TE, weight_E)",
        "a layer does not see what the one before it added",
        tests=(MLP,),
    ),
    Mutant(
        "the last layer computes every row",
        "Decoder._layers",
        "wanted_L.numel() < x_TE.shape[0]",
        "False",
        "a tenth of a prompt's products is of no use",
        tests=(RUNNER,),
    ),
    Mutant(
        "the size up to which one thread is best needs two",
        "Threads.for_rows",
        "rows <= self.alone_up_to",
        "rows < self.alone_up_to",
        "a decode of one wakes another thread",
        tests=(PRODUCTS,),
    ),
    Mutant(
        "one slow size on one thread is skipped",
        "alone_up_to",
        "break",
        "continue",
        "sizes that are slower on one thread run on one",
        tests=(CHOICE,),
    ),
    Mutant(
        "what the timed forwards wrote stays in page 0",
        "choose_threads",
        "kv.layer(layer)[0].zero_()",
        "pass",
        "padding reads it",
        tests=(CHOICE,),
    ),
    Mutant(
        "a prefill worker times decodes",
        "choose_decode_threads",
        "settings.role is Role.PREFILL",
        "False",
        "its start takes longer for nothing",
        tests=(BOOT,),
    ),
    Mutant(
        "an event before a last launch without an event is never told",
        "HostStream.launch",
        "self.tell()",
        "pass",
        "the loop sleeps beside a launch that is over",
        tests=(STREAMS,),
    ),
    Mutant(
        "an event behind which nothing is queued is told late",
        "HostStream.record",
        "not self.tells_late or self._queue.empty()",
        "not self.tells_late",
        "the last token of a stream waits for the next request",
        tests=(STREAMS,),
    ),
    Mutant(
        "a decode calls nothing before its layers",
        "CpuLayers.run",
        "kernels.threads.before_long_call()",
        "pass",
        "the loop is woken when the launch is over",
        tests=(LAYERS,),
    ),
    Mutant(
        "a launch with chunks calls nothing before its layers",
        "Decoder._layers",
        "self.at_once.kernels.threads.before_long_call()",
        "pass",
        "the loop is woken when the launch is over",
        tests=(LAYERS,),
    ),
    Mutant(
        "prompts beside decodes fill the launch",
        "Policies.launch_tokens",
        "most and decode_tokens and self.mixed_chunk_size",
        "False",
        "streams wait for 2,048 tokens of others' prompts",
        tests=(POLICIES,),
    ),
)
