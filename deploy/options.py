"""Every option of the `baton` command, in one table: flags, environment variables, file keys and help come from here.

What it does not know: how values are found (runtime/layered_config.py) or what is done with them (layout.py).
"""

from typing import get_args

from runtime.layered_config import Kind, Option
from runtime.settings import AttentionName, TransferBackend

COMMANDS = {
    "serve": "start a gateway and workers on this machine",
    "gateway": "start a gateway alone; workers join it, also from other hosts",
    "worker": "start one worker that joins a gateway",
    "demo": "serve the bundled model, stream one answer, show its time line, stop",
    "keys": "make the keys by which gateway and workers know one another",
    "config": "print every value and where it comes from",
}
OTHER_VARIABLES = {
    "BATON_LAUNCHER_PID": "written by the launcher for its children, which end with it; not for users",
    "BATON_PEER_VLLM": "the vllm executable that `make bench` compares with; nothing for servers",
}
MODEL_FLAG = "model"  # may be typed without its name: baton serve DIR

_START = ("serve", "gateway", "worker", "demo")
_COMPUTE = ("serve", "worker", "demo")
_SERVE = ("serve", "worker")
_FRONT = ("serve", "gateway")

WHAT = "what to start"
MODEL = "model"
ADDRESS = "addresses"
TRUST = "who may connect"
MEMORY = "memory and batches"
HANDOVER = "from prefill to decode"
LOSS = "when a worker is lost"
LIMITS = "what clients may ask"
MACHINE = "this machine"
DEMO = "the request"

OPTIONS: tuple[Option, ...] = (
    Option(
        name="prefill", kind=Kind.INTEGER, default=1, maximum=256, metavar="N", group=WHAT, commands=("serve",),
        help="prefill workers: they compute a prompt's KV and its first token",
    ),
    Option(
        name="decode", kind=Kind.INTEGER, default=1, maximum=256, metavar="N", group=WHAT, commands=("serve",),
        help="decode workers: they stream the other tokens",
    ),
    Option(
        name="unified", kind=Kind.INTEGER, default=0, maximum=256, metavar="N", group=WHAT, commands=("serve",),
        help="workers that do both, without a hand-over",
    ),
    Option(
        name="role", group=WHAT, commands=("worker",), choices=("prefill", "decode", "unified"),
        synonyms={"null": "unified"}, aliases=("disaggregation-mode",), unset="required by baton worker", required=True,
        metavar="ROLE",
        help="what this worker does",
    ),
    Option(
        name="worker-id", metavar="NAME", group=WHAT, commands=("worker",), unset="ROLE-HOSTNAME-XXXX",
        help="name of this worker, unique at its gateway",
    ),
    Option(
        name="model", metavar="DIR", group=MODEL, commands=_START, aliases=("model-path",),
        unset="the bundled model",
        help="folder with config.json and safetensors weights",
    ),
    Option(
        name="served-model-name", kind=Kind.LIST, metavar="NAME", group=MODEL, commands=_FRONT,
        unset="the folder's name",
        help="names that clients may ask for; answers tell the first. What --model was given is understood, too",
    ),
    Option(
        name="tokenizer", metavar="DIR", group=MODEL, commands=_FRONT, aliases=("tokenizer-path",),
        unset="the model's folder", help="folder with tokenizer.json and chat template",
    ),
    Option(
        name="chat-template", metavar="FILE", group=MODEL, commands=_FRONT, unset="the tokenizer's own",
        help="Jinja template that turns the messages of a chat into a prompt",
    ),
    Option(
        name="device", default="auto", metavar="DEVICE", group=MODEL, commands=_COMPUTE,
        choices=("auto", "cpu", "cuda"), synonyms={"gpu": "cuda"}, pattern="cuda:[0-9]{1,3}", pattern_shown="cuda:N",
        help="where workers compute; auto takes GPUs if there are any, cuda:1 is --gpus 1",
    ),
    Option(
        name="gpus", default="all", metavar="LIST", group=MODEL, commands=("serve", "demo"),
        help="GPUs that workers compute on, shared out by role (0,1 or 0-3); their numbers are those that"
        " CUDA_VISIBLE_DEVICES leaves",
    ),
    Option(
        name="gpus", metavar="N", group=MODEL, commands=("worker",), unset="the first",
        help="GPU that this worker computes on, among those that CUDA_VISIBLE_DEVICES leaves",
    ),
    Option(
        name="dtype", default="auto", metavar="TYPE", group=MODEL, commands=_COMPUTE,
        choices=("auto", "float32", "bfloat16", "float16"),
        help="numbers of weights and KV, auto is the checkpoint's",
    ),
    Option(
        name="check-weights", kind=Kind.SWITCH, default=False, group=MODEL, commands=_COMPUTE,
        help="read every weight at the start and refuse a model with NaN or infinities in it",
    ),
    Option(
        name="context-length", kind=Kind.INTEGER, minimum=1, metavar="N", group=MODEL, commands=(*_FRONT, "worker"),
        aliases=("max-model-len",), unset="the model's own", help="longest prompt plus answer, in tokens",
    ),
    Option(
        name="host", default="127.0.0.1", metavar="ADDR", group=ADDRESS, commands=_FRONT,
        help="address on which the gateway answers HTTP; 0.0.0.0 for every interface",
    ),
    Option(
        name="host", metavar="ADDR", group=ADDRESS, commands=("worker",), unset="the one that faces the gateway",
        help="address at which other workers reach this one",
    ),
    Option(
        name="port", kind=Kind.INTEGER, default=8000, maximum=65535, metavar="N", group=ADDRESS, commands=_FRONT,
        help="HTTP port; 0 lets the system choose",
    ),
    Option(
        name="control", default="tcp://127.0.0.1:0", metavar="tcp://ADDR:PORT", group=ADDRESS, commands=("gateway",),
        help="where workers dial; port 0 lets the system choose",
    ),
    Option(
        name="gateway", metavar="tcp://ADDR:PORT", group=ADDRESS, commands=("worker",),
        unset="required by baton worker", required=True, help="the gateway's control address, as it prints it",
    ),
    Option(
        name="keys", metavar="DIR", group=TRUST, commands=("serve", "gateway", "worker"), unset="none",
        help="folder of keys, made by `baton keys new`: only who is on its list may connect as a gateway or worker, and"
        " what they say is encrypted",
    ),
    Option(
        name="encrypt-data", kind=Kind.SWITCH, default=False, group=TRUST, commands=_SERVE,
        help="with --keys, KV between hosts is encrypted too, at a price (docs/security.md)",
    ),
    Option(
        name="trust-network", kind=Kind.SWITCH, default=False, group=TRUST, commands=("gateway", "worker"),
        help="without --keys, bind an address that other machines reach: whoever reaches it may pose as a worker",
    ),
    Option(
        name="api-key-file", metavar="FILE", group=TRUST, commands=_FRONT, unset="none: whoever reaches HTTP is served",
        help="file with one API key a line, readable by its owner alone: clients send one as"
        " `Authorization: Bearer KEY`, everywhere but to /health",
    ),
    Option(
        name="allowed-origins", kind=Kind.LIST, metavar="ORIGIN", group=TRUST, commands=_FRONT, unset="none",
        help="origins of web pages whose scripts may use the gateway (CORS), such as https://app.example.com; *: any",
    ),
    Option(
        name="page-size", kind=Kind.INTEGER, default=16, minimum=1, maximum=4096, metavar="N", group=MEMORY,
        commands=_SERVE, aliases=("block-size",),
        help="tokens in one page of KV",
    ),
    Option(
        name="max-total-tokens", kind=Kind.INTEGER, minimum=1, metavar="N", group=MEMORY, commands=_SERVE,
        unset="what memory allows", help="tokens of KV that one worker holds; no request can be longer",
    ),
    Option(
        name="max-running-requests", kind=Kind.INTEGER, default=64, minimum=1, maximum=65536, metavar="N", group=MEMORY,
        commands=_SERVE, aliases=("max-num-seqs",), help="requests in one worker's batch",
    ),
    Option(
        name="chunked-prefill-size", kind=Kind.INTEGER, default=2048, metavar="N", group=MEMORY, commands=_SERVE,
        help="prompt tokens in one prefill step; 0 takes whole prompts",
    ),
    Option(
        name="disable-overlap-schedule", kind=Kind.SWITCH, default=False, group=MEMORY, commands=_SERVE,
        aliases=("no-async-scheduling",),
        help="schedule and compute in turns instead of at the same time",
    ),
    Option(
        name="disable-cuda-graph", kind=Kind.SWITCH, default=False, group=MEMORY, commands=_SERVE,
        help="decode on a GPU kernel by kernel",
    ),
    Option(
        name="attention-backend", default="auto", metavar="NAME", group=MEMORY, commands=_SERVE,
        choices=get_args(AttentionName),
        help="what computes attention; auto is triton on a GPU, where a request's result does not depend on its batch"
        " (docs/operations.md); one of",
    ),
    Option(
        name="disable-cpu-kernels", kind=Kind.SWITCH, default=False, group=MEMORY, commands=_SERVE,
        help="compute on a CPU with torch's operations alone, as where there is no C compiler",
    ),
    Option(
        name="transfer-backend", default="auto", metavar="NAME", group=HANDOVER, commands=_SERVE,
        choices=get_args(TransferBackend), aliases=("disaggregation-transfer-backend",),
        help="how KV travels; auto takes what each pair can of cuda_ipc (from device to device, on one host), shm"
        " (written in place, on one host) and zmq (over TCP); nixl goes by RDMA, ray through the Ray cluster that the"
        " host is a node of, both with packages of their own (docs/operations.md); one of",
    ),
    Option(
        name="pairing", default="least_loaded", metavar="RULE", group=HANDOVER, commands=_FRONT,
        choices=("least_loaded", "round_robin"), help="how workers are chosen for a request",
    ),
    Option(
        name="max-attempts", kind=Kind.INTEGER, default=3, minimum=1, maximum=100, metavar="N", group=LOSS,
        commands=_FRONT, help="times that a request is given to workers before its client gets an error; 1: no retry",
    ),
    Option(
        name="retry-wait", kind=Kind.INTEGER, default=4, metavar="SECONDS", group=LOSS, commands=_FRONT,
        help="how long a request may lack workers, from when its lost worker was last heard",
    ),
    Option(
        name="max-restarts", kind=Kind.INTEGER, default=5, maximum=1000000, metavar="N", group=LOSS,
        commands=("serve", "gateway", "worker"),
        help="how often in a row a process that ends is started again, with growing waits; 0: never",
    ),
    Option(
        name="hang-limit", kind=Kind.INTEGER, default=10, metavar="SECONDS", group=LOSS,
        commands=("serve", "gateway", "worker"),
        help="a process without a sign of life for so long (stopped, or hung) is killed and started again; 0: never",
    ),
    Option(
        name="launch-deadline", kind=Kind.INTEGER, default=120, minimum=1, metavar="SECONDS", group=LOSS,
        commands=_FRONT, help="a worker that computes one batch for so long counts as lost",
    ),
    Option(
        name="max-body-bytes", kind=Kind.INTEGER, default=8388608, minimum=1, metavar="BYTES", group=LIMITS,
        commands=_FRONT,
        help="longest body of a request",
    ),
    Option(
        name="max-header-bytes", kind=Kind.INTEGER, default=65536, minimum=1, metavar="BYTES", group=LIMITS,
        commands=_FRONT,
        help="longest request line and headers",
    ),
    Option(
        name="max-headers", kind=Kind.INTEGER, default=256, minimum=1, metavar="N", group=LIMITS, commands=_FRONT,
        aliases=("h11-max-header-count",),
        help="headers of one request",
    ),
    Option(
        name="max-connections", kind=Kind.INTEGER, default=1024, minimum=1, metavar="N", group=LIMITS, commands=_FRONT,
        help="connections of clients at once",
    ),
    Option(
        name="max-choices-in-flight", kind=Kind.INTEGER, default=2048, minimum=1, metavar="N", group=LIMITS,
        commands=_FRONT,
        help="choices waiting or being answered at once; beyond it clients get 429",
    ),
    Option(
        name="max-choices", kind=Kind.INTEGER, default=128, minimum=1, metavar="N", group=LIMITS, commands=_FRONT,
        help="choices (n) of one prompt",
    ),
    Option(
        name="max-prompts", kind=Kind.INTEGER, default=1024, minimum=1, metavar="N", group=LIMITS, commands=_FRONT,
        help="prompts in one request",
    ),
    Option(
        name="max-stop-strings", kind=Kind.INTEGER, default=64, minimum=1, metavar="N", group=LIMITS, commands=_FRONT,
        help="stop strings of one request",
    ),
    Option(
        name="header-timeout", kind=Kind.INTEGER, default=20, minimum=1, metavar="SECONDS", group=LIMITS,
        commands=_FRONT,
        help="time for a request's headers to arrive",
    ),
    Option(
        name="body-timeout", kind=Kind.INTEGER, default=60, minimum=1, metavar="SECONDS", group=LIMITS, commands=_FRONT,
        help="time for a request's body to arrive",
    ),
    Option(
        name="keep-alive-timeout", kind=Kind.INTEGER, default=75, minimum=1, metavar="SECONDS", group=LIMITS,
        commands=_FRONT,
        help="how long a connection without a request is kept",
    ),
    Option(
        name="slow-reader-timeout", kind=Kind.INTEGER, default=60, minimum=1, metavar="SECONDS", group=LIMITS,
        commands=_FRONT, help="how long a client may leave its answer unread before it is cut off",
    ),
    Option(
        name="max-stream-backlog", kind=Kind.INTEGER, default=16384, minimum=1, metavar="TOKENS", group=LIMITS,
        commands=_FRONT, help="tokens that wait for a client that does not read; beyond it, it is cut off",
    ),
    Option(
        name="threads", kind=Kind.INTEGER, minimum=1, maximum=1024, metavar="N", group=MACHINE, commands=_COMPUTE,
        unset="cores / workers", help="compute threads of each worker",
    ),
    Option(
        name="cpus", default="none", metavar="LIST", group=MACHINE, commands=_SERVE,
        help="cores that workers are pinned to, shared out in order (0-3,6); auto: all; the gateway is never pinned",
    ),
    Option(
        name="workers-on-host", kind=Kind.INTEGER, default=1, minimum=1, maximum=1024, metavar="N", group=MACHINE,
        commands=("worker",), help="workers that share this machine's memory and cores, this one included",
    ),
    Option(
        name="workers-on-gpu", kind=Kind.INTEGER, minimum=1, maximum=1024, metavar="N", group=MACHINE,
        commands=("worker",), unset="1 where the GPU is named, else as --workers-on-host",
        help="workers that share the memory of this one's GPU, this one included",
    ),
    Option(
        name="config", metavar="FILE", group=MACHINE, commands=_START, in_file=False, unset="none",
        help="TOML file; its keys are named like the flags",
    ),
    Option(
        name="log-level", default="info", metavar="LEVEL", group=MACHINE, commands=("serve", "gateway", "worker"),
        choices=("debug", "info", "warning", "error"), help="least severe log line to show",
    ),
    Option(
        name="log-level", default="warning", metavar="LEVEL", group=MACHINE, commands=("demo",),
        choices=("debug", "info", "warning", "error"), help="least severe log line to show",
    ),
    Option(
        name="prompt", kind=Kind.PROSE, default="Once upon a time", metavar="TEXT", group=DEMO, commands=("demo",),
        help="text to continue",
    ),
    Option(
        name="max-tokens", kind=Kind.INTEGER, default=160, minimum=1, metavar="N", group=DEMO, commands=("demo",),
        help="longest answer",
    ),
)  # fmt: skip

EXAMPLES = {
    "serve": """\
  baton serve                                        the bundled model, 1 prefill + 1 decode
  baton serve ~/models/Qwen3-0.6B --prefill 1 --decode 2
  baton serve --prefill 0 --decode 0 --unified 1     the colocated baseline
  baton serve --config baton.toml --port 0           a file, and a port that the system chooses""",
    "gateway": """\
  baton gateway --model ~/models/Qwen3-0.6B --host 0.0.0.0 --control tcp://0.0.0.0:7000 --keys keys/gateway""",
    "worker": """\
  baton worker --role prefill --gateway tcp://10.0.0.5:7000 --keys keys/worker --model ~/models/Qwen3-0.6B
  baton worker --role decode --gateway tcp://127.0.0.1:7000 --workers-on-host 2 --gpus 1""",
    "demo": """\
  baton demo
  baton demo --prompt "The old sailor" --max-tokens 100""",
    "keys": """\
  baton keys new keys                                keys/gateway and keys/worker, each for --keys
  baton keys new keys host-a host-b                  one for each host; later ones are added alike
  baton keys list keys                               who may connect
  baton keys revoke keys host-b                      not this one any more""",
    "config": """\
  baton config --port 9000                           what `baton serve --port 9000` would use
  baton config --config baton.toml --json""",
}


def options_for(command: str) -> tuple[Option, ...]:
    """The options of one command, in the order of the help. `config` takes those of every command that serves."""
    if command != "config":
        return tuple(option for option in OPTIONS if command in option.commands)
    found: dict[str, Option] = {}
    for option in OPTIONS:
        if set(option.commands) & {"serve", "gateway", "worker"}:
            found.setdefault(option.name, option)
    return tuple(found.values())
