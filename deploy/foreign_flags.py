"""Flags of vLLM and SGLang that Baton does not have, each with what Baton does instead and the flag for it.

A value that changes nothing in Baton is accepted; any other is refused with a reason. A flag with the same meaning in
Baton is not in this table: it is an alias, in the annotation of its option.
"""

from dataclasses import dataclass

from protocol.errors import brief


@dataclass(frozen=True)
class ForeignFlag:
    """One flag with all its names, or several with one answer. Values in `taken` are accepted. A flag that is `alone`
    has no value and is accepted. `why` is a clause: what Baton does, and its flag, if there is one."""

    names: tuple[str, ...]
    why: str
    taken: tuple[str, ...] = ()
    alone: bool = False

    def refusal(self, name: str, value: str | None) -> str | None:
        """Why the flag, typed as `name`, is refused with this value; None if it is accepted."""
        if self.alone or value in self.taken:
            return None
        if self.taken:
            return f"{name}: got {brief(value)}, expected {' or '.join(self.taken)}: {self.why}"
        return f"{name} is not a flag of this command: {self.why}"


def _flag(names: str, reason: str, *taken: str) -> ForeignFlag:
    return ForeignFlag(tuple(names.split()), reason, taken)


def _taken(names: str, reason: str) -> ForeignFlag:
    return ForeignFlag(tuple(names.split()), reason, alone=True)


_ONE_DEVICE = "each rank computes on one device: --dp-size starts more ranks of a worker, --decode more workers"
_HOSTS = "start one `baton gateway`, and on each host a `baton worker` for each worker"
_AS_PAIRS = "prefill and decode are workers of one command: `baton serve --prefill 1 --decode 1`"

_LOSSLESS = "a proposal is kept only if it is what the model draws, so that answers are those without a draft"
_DRAFT_ATTENTION = "a draft computes attention as its model does; see --attention-backend"
_NO_QUANTISED_DRAFT = "Baton serves no quantised weights yet; a draft computes in the type of its model"

FOREIGN: tuple[ForeignFlag, ...] = (
    # what to start
    _flag("--disaggregation-mode", f"{_AS_PAIRS}; to start one worker alone, `baton worker --role prefill`"),
    _flag("--kv-transfer-config", f"{_AS_PAIRS}; --transfer-backend says how KV travels between them"),
    _flag("--disaggregation-bootstrap-port", "a worker chooses its ports and tells the gateway; see --control"),
    _flag("--disaggregation-ib-device", "with --transfer-backend nixl, the variable UCX_NET_DEVICES names the device"),
    _flag("-tp", "say --tp-size, with --dp-size and --enable-dp-attention", "1"),
    _flag("-dp", "say --dp-size, with --enable-dp-attention", "1"),
    _flag("--pipeline-parallel-size -pp --pp-size --pp", _ONE_DEVICE, "1"),
    _flag("--expert-parallel-size --ep-size --ep", _ONE_DEVICE, "1"),
    _flag("--enable-expert-parallel", _ONE_DEVICE),
    _flag("--nnodes", _HOSTS, "1"),
    _flag("--node-rank", _HOSTS, "0"),
    _flag("--dist-init-addr", _HOSTS),
    _flag("--distributed-executor-backend", _ONE_DEVICE, "mp", "uni"),
    _flag("--api-server-count", "one gateway speaks HTTP for all workers", "1"),
    # model
    _flag(
        "--load-format --speculative-draft-load-format",
        "weights are read from safetensors files only",
        "auto",
        "safetensors",
    ),
    _flag(
        "--download-dir",
        "a model with a hub's name is downloaded into the hub's cache, whose place is in HF_HOME",
    ),
    _flag("--quantization -q", "Baton serves no quantised weights yet; --dtype says in which type it computes"),
    _flag("--kv-cache-dtype", "KV has the type that --dtype says", "auto"),
    _flag("--tokenizer-mode", "there is one kind of tokenizer, that of tokenizer.json", "auto", "fast"),
    _flag("--generation-config", "defaults come from generation_config.json in the model's folder", "auto"),
    _flag("--runner", "Baton generates text and does nothing else", "auto", "generate"),
    _flag("--task", "Baton generates text and does nothing else", "auto", "generate"),
    _taken("--trust-remote-code", "nothing in a model's folder is ever run, with or without it"),
    _flag(
        "--hf-overrides --rope-scaling",
        "Baton serves the model that config.json describes; change that file in a copy of the folder",
    ),
    _flag(
        "--override-generation-config",
        "defaults come from generation_config.json in the model's folder; change that file in a copy of the folder",
    ),
    _flag("--seed --random-seed", "each request has a `seed` of its own; without one it gets a random one"),
    _flag("--enable-lora --lora-modules --lora-paths", "Baton serves no LoRA adapters yet"),
    # memory and batches
    _flag(
        "--max-num-batched-tokens",
        "it limits prompt tokens and decodes of a step together; here they are apart: --max-prefill-tokens limits"
        " the prompt tokens, --max-running-requests the decodes",
    ),
    _flag(
        "--gpu-memory-utilization --mem-fraction-static",
        "it is a share of the GPU's memory, with weights and KV in it; Baton takes what is free, less a reserve, and"
        " --max-total-tokens limits the KV",
    ),
    _flag("--kv-cache-memory-bytes", "it counts bytes; --max-total-tokens counts the tokens of KV"),
    _flag("--num-gpu-blocks-override", "it counts pages; --max-total-tokens counts the tokens in them"),
    _flag("--swap-space", "--retract-to host moves KV of preempted requests to host memory", "0"),
    _flag("--cpu-offload-gb", "weights stay where the worker computes", "0"),
    _taken("--enable-chunked-prefill", "prompts are cut into chunks unless --chunked-prefill-size is 0"),
    _flag("--no-enable-chunked-prefill", "`--chunked-prefill-size 0` takes whole prompts"),
    _taken("--enable-prefix-caching", "prefixes are cached unless --disable-radix-cache is given"),
    _flag("--enable-hierarchical-cache", "prefixes are cached only where the worker computes"),
    _flag("--preemption-mode", "--retract-to says what becomes of a preempted request", "recompute"),
    _flag(
        "--schedule-conservativeness",
        "--num-reserved-decode-tokens says how much room running requests keep when another one is admitted",
        "1",
        "1.0",
    ),
    _flag(
        "--enable-priority-scheduling",
        "the field `priority` of a request always counts; a smaller number is earlier, there by default a larger one",
    ),
    _taken("--schedule-low-priority-values-first", "a request with a smaller number as its `priority` is earlier"),
    # a draft
    _flag(
        "--speculative-config -sc",
        "flags say it: its method is --speculative-algorithm, its model --speculative-draft-model-path, its"
        " num_speculative_tokens --speculative-num-steps",
    ),
    _flag(
        "--speculative-draft-model-revision",
        "a draft with a hub's name is that of the branch main; download another one, and name its folder with"
        " --speculative-draft-model-path",
    ),
    _flag("--speculative-draft-tensor-parallel-size -spec-draft-tp", "a draft computes where its model does", "1"),
    _flag("--speculative-model-quantization --speculative-draft-model-quantization", _NO_QUANTISED_DRAFT),
    _flag("--speculative-max-model-len", "a draft has the context of its model; see --context-length"),
    _flag(
        "--speculative-disable-by-batch-size",
        "by --speculative-adaptive a draft proposes fewer tokens in large batches, as far as measured costs say so",
    ),
    _flag("--speculative-adaptive-config", "costs that are measured at the start say how many tokens a draft proposes"),
    _taken("--enable-multi-layer-eagle", "--speculative-algorithm mtp takes all draft layers that the model has"),
    _flag("--speculative-draft-attention-backend --speculative-attention-mode", _DRAFT_ATTENTION),
    _flag("--speculative-token-map", "the tokens that a draft knows are in its folder (d2t)"),
    _flag("--speculative-accept-threshold-single --speculative-accept-threshold-acc", _LOSSLESS, "1", "1.0"),
    _taken("--speculative-use-rejection-sampling", _LOSSLESS),
    _flag("--spec-decoding-acceptance-method", _LOSSLESS, "rejection_sampler"),
    _flag("--ngram-prompt-lookup-max --ngram-prompt-lookup-min", "a draft proposes; see --speculative-algorithm"),
    # kernels
    _flag(
        "--enforce-eager",
        "there it switches off torch.compile as well, which Baton does not use; --disable-cuda-graph switches off the"
        " CUDA graphs",
    ),
    _flag("--compilation-config -O", "Baton compiles no graph; --disable-cuda-graph switches off CUDA graphs"),
    _flag("--enable-torch-compile", "Baton compiles no graph"),
    _flag("--cuda-graph-max-bs --cuda-graph-bs", "graphs are made for every batch up to --max-running-requests"),
    _taken("--async-scheduling", "scheduling overlaps computing unless --disable-overlap-schedule is given"),
    # this machine
    _flag("--base-gpu-id", "--gpus says which GPUs workers compute on: --gpus 1,2"),
    _flag("--gpu-id-step", "--gpus says which GPUs workers compute on: --gpus 0,2", "1"),
    _flag("--watchdog-timeout", "--launch-deadline limits one batch, --hang-limit the silence of a process"),
    # HTTP
    _flag("--api-key", "say --api-key-file FILE: every user of a machine can read its command lines"),
    _flag("--ssl-keyfile --ssl-certfile", "Baton's HTTP has no TLS; put a proxy in front (docs/security.md)"),
    _flag("--root-path", "a proxy in front can add a path"),
    _flag("--h11-max-incomplete-event-size", "--max-header-bytes limits the headers, --max-body-bytes the body"),
    _flag("--load-balance-method --policy", "--pairing says how workers are chosen for a request"),
    _flag("--stream-interval", "a stream has a chunk for each step of a choice", "1"),
    _flag("--response-role", "answers have the role assistant", "assistant"),
    _flag("--chat-template-content-format", "a template gets the content of a message as one string", "auto", "string"),
    _flag("--return-tokens-as-token-ids", "a request asks for that with the field `return_tokens_as_token_ids`"),
    _flag("--max-logprobs", "a request may ask for the 20 likeliest tokens at each place", "20"),
    _flag("--guided-decoding-backend --grammar-backend", "llguidance follows every grammar"),
    _taken("--enable-auto-tool-choice", "calls are read wherever the chat template tells their format"),
    _taken("--enable-cache-report --enable-prompt-tokens-details", "every answer's `usage` has its cached tokens"),
    _taken("--enable-request-id-headers", "every answer has the header x-request-id"),
    # logs and figures
    _taken("--enable-metrics", "/metrics is always there"),
    _flag("--enable-log-requests --log-requests", "`--log-level debug` adds a line for each request"),
    _taken("--disable-log-requests --no-enable-log-requests", "requests are logged with `--log-level debug` only"),
    _taken("--disable-log-stats", "no statistics are written to the log; /metrics has them"),
    _taken("--disable-uvicorn-access-log", "Baton writes no access log"),
    _flag("--uvicorn-log-level --log-level-http", "--log-level is for all processes, HTTP among them"),
)
_SHORT = sorted((name for flag in FOREIGN for name in flag.names if not name.startswith("--")), key=len, reverse=True)


def detached(argument: str) -> list[str]:
    """Splits a short flag with an attached value, `-tp2`, into flag and value; returns others unchanged."""
    name = next((name for name in _SHORT if argument.startswith(name)), argument)
    value = argument.removeprefix(name)
    return [name, value] if value and not value.startswith("=") else [argument]
