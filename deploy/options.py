"""Every option of the `baton` command: the fields of runtime/settings.py, and here those that only the launcher needs.

Flags, environment variables, file keys and help come from the annotations of the fields.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Final

from pydantic import Field

from runtime.options import Flag, Option, options_of
from runtime.settings import (
    COMPUTE,
    SERVERS,
    GatewaySettings,
    Group,
    HttpLimits,
    LogLevel,
    Positive,
    ProcessSettings,
    WorkerSettings,
)

Workers = Annotated[int, Field(ge=0, le=256)]
MAX_RANKS: Final = 256  # of one group
Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]
Restarts = Annotated[int, Field(ge=0, le=1000000)]
COMMANDS = {
    "serve": "start a gateway and workers on this machine",
    "gateway": "start a gateway alone; workers join it, also from other hosts",
    "worker": "start one worker that joins a gateway",
    "demo": "serve the bundled model, stream one answer, show its time line, stop",
    "bench": "put a load on an endpoint and say how it serves; compare two reports",
    "verify": "say whether a server ever answers wrongly under load",
    "check": "say whether a model folder loads, what it is made of, and how much memory it takes; start nothing",
    "kernels": "build the C code for CPUs before a worker needs it, as for an image",
    "keys": "make the keys by which gateway and workers know one another",
    "config": "print every value and where it comes from",
    "ray": "make and check the file that runs Baton on a Ray cluster, and show what runs there",
}
CHECKED: Final = ("model", "device", "dtype", "context-length", "page-size", "max-running-requests", "dp-size")
RAY_CONFIG: Final = "ray config"  # takes the options of `baton serve`, and some of its own
OTHER_VARIABLES = {
    "BATON_LAUNCHER_PID": "written by the launcher for its children, which end with it; not for users",
    "BATON_PEER_VLLM": "the vllm executable that `make bench` compares with; nothing for servers",
}
MODEL_FLAG = "model"  # may be typed without its name: baton serve DIR


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """How many workers `baton serve` starts."""

    _count: ClassVar = partial(Flag, group=Group.WHAT, commands=("serve",))

    # fmt: off
    prefill: Annotated[Workers, _count("prefill workers: they compute a prompt's KV and its first token")] = 1
    decode: Annotated[Workers, _count("decode workers: they stream the other tokens")] = 1
    unified: Annotated[Workers, _count("workers that do both, without a hand-over")] = 0
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class ScalingSettings:
    """Which roles grow and shrink with their load on a Ray cluster, and which load is aimed at (ray/scaling.py)."""

    _flag: ClassVar = partial(Flag, group=Group.SCALE, commands=(RAY_CONFIG,))

    # fmt: off
    prefill_max: Annotated[Workers | None, _flag(
        "most prefill workers: as many run as the load needs, --prefill of them at least", unset="--prefill")] = None
    decode_max: Annotated[Workers | None, _flag("the same for decode workers", unset="--decode")] = None
    unified_max: Annotated[Workers | None, _flag("the same for unified workers", unset="--unified")] = None
    target_kv_percent: Annotated[int, Field(ge=1, le=100), _flag(
        "share of its KV pages, in percent, that requests should hold at each worker at most")] = 80
    target_queued_tokens: Annotated[Positive, _flag(
        "prompt tokens that should wait at each worker at most")] = 8192
    target_ttft_ms: Annotated[Positive | None, _flag(
        "time to first token that 90% of requests should have at most, for prefill and unified workers",
        unset="not looked at")] = None
    target_itl_ms: Annotated[Positive | None, _flag(
        "the same for the time between two tokens, for decode and unified workers", unset="not looked at")] = None
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """How many ranks a worker has (ranks.py)."""

    _flag: ClassVar = partial(Flag, group=Group.WHAT, commands=COMPUTE)

    # fmt: off
    dp_size: Annotated[Ranks, _flag(
        "ranks of a worker: processes with requests and KV of their own, which share the MLP of each layer; needs"
        " --enable-dp-attention", aliases=("data-parallel-size", "dp"))] = 1
    prefill_dp_size: Annotated[Ranks | None, _flag("the same for prefill workers alone",
        commands=("serve",), unset="--dp-size")] = None
    decode_dp_size: Annotated[Ranks | None, _flag("the same for decode workers alone",
        commands=("serve",), unset="--dp-size")] = None
    enable_dp_attention: Annotated[bool, _flag("allows --dp-size above 1: each rank has attention of its own")] = False
    tp_size: Annotated[Ranks, _flag(
        "all ranks of a worker: 1, or the same as --dp-size, since ranks do not share attention yet",
        aliases=("tensor-parallel-size", "tp"))] = 1
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How processes that end or hang are started again (supervisor.py)."""

    # fmt: off
    max_restarts: Annotated[Restarts | None, Flag(
        "most starts in a row of a process that ends again and again, with waits that grow to 30 s; 0: none",
        group=Group.LOSS, commands=SERVERS, unset="no limit")] = None
    hang_limit_s: Annotated[float, Field(ge=0), Flag(
        "a process without a sign of life for so long (stopped, or hung) is killed and started again; 0: never",
        group=Group.LOSS, commands=SERVERS)] = 10
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class LauncherSettings:
    """How workers are spread over this machine, and where the options are written."""

    # fmt: off
    gpus: Annotated[str, Flag(
        "GPUs that workers compute on, shared out by role (0,1 or 0-3); their numbers are those that"
        " CUDA_VISIBLE_DEVICES leaves",
        group=Group.MODEL, commands=("serve", "demo"), metavar="LIST")] = "all"
    cpus: Annotated[str, Flag(
        "cores that workers are pinned to, shared out in order (0-3,6); auto: all; the gateway is never pinned",
        group=Group.MACHINE, commands=("serve", "worker"), metavar="LIST")] = "none"
    revision: Annotated[str | None, Flag(
        "branch, tag or commit of a model that --model names at a hub",
        group=Group.MODEL, commands=(*SERVERS, "demo"), metavar="REVISION", unset="main")] = None
    config: Annotated[str | None, Flag("TOML file; its keys are named like the flags",
        group=Group.MACHINE, commands=(*SERVERS, "demo"), metavar="FILE", unset="none", in_file=False)] = None
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class LoneWorkerSettings:
    """What `baton worker` takes in place of an option of `baton serve`."""

    # fmt: off
    gpus: Annotated[str | None, Flag(
        "GPU that this worker computes on, or GPUs that its ranks share out (0,1 or 0-3), among those that"
        " CUDA_VISIBLE_DEVICES leaves",
        group=Group.MODEL, commands=("worker",), metavar="LIST", unset="the first")] = None
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """What `baton demo` asks for, how little it logs, and that its draft always proposes, so that one can see it."""

    _flag: ClassVar = partial(Flag, commands=("demo",))

    # fmt: off
    log_level: Annotated[LogLevel, _flag("least severe log line to show",
        group=Group.MACHINE, metavar="LEVEL")] = "warning"
    prompt: Annotated[str, Field(min_length=0), _flag("text to continue",
        group=Group.DEMO, metavar="TEXT", expected="text in UTF-8")] = "Once upon a time"
    max_tokens: Annotated[Positive, _flag("longest answer", group=Group.DEMO)] = 160
    speculative_adaptive: Annotated[bool, _flag("propose fewer tokens where more cost time", group=Group.DRAFT)] = False
    # fmt: on


_OWNERS: Final = (
    ServeSettings, ScalingSettings, ProcessSettings, GatewaySettings, HttpLimits, WorkerSettings, RankSettings, Rules,
    LauncherSettings, LoneWorkerSettings, DemoSettings,
)  # fmt: skip
# in the order of the help: by group, then as declared
OPTIONS: Final = tuple(
    option for group in Group for owner in _OWNERS for option in options_of(owner) if option.group == group
)

EXAMPLES = {
    "serve": """\
  baton serve                                        the bundled model, 1 prefill + 1 decode
  baton serve ~/models/Qwen3-0.6B --prefill 1 --decode 2
  baton serve --decode-dp-size 4 --enable-dp-attention   one decode worker of four ranks that share the MLP
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
    "bench": """\
  baton bench --port 8000 --request-rate 4 --num-prompts 200
  baton bench --url http://10.0.0.5:8000 --max-concurrency 16 --duration 60 --goodput ttft:500 itl:50
  baton bench compare before/report.json after/report.json""",
    "verify": """\
  baton verify http://127.0.0.1:8000
  baton verify http://127.0.0.1:8000 --model ~/models/Qwen3-0.6B --cancels --minutes 5 --out verified""",
    "check": """\
  baton check ~/models/Qwen3-30B-A3B
  baton check ~/models/GLM-4.5-Air --context-length 32768 --max-running-requests 64 --dp-size 4 --json""",
    "kernels": """\
  baton kernels build                                for heads of 64 and 128: Llama, Qwen, Mistral and most others
  baton kernels build 96 256                         for these head sizes
  RUN baton kernels build                            in a Dockerfile, after USER""",
    "keys": """\
  baton keys new keys                                keys/gateway and keys/worker, each for --keys
  baton keys new keys host-a host-b                  one for each host; later ones are added alike
  baton keys list keys                               who may connect
  baton keys revoke keys host-b                      host-b may not connect any more""",
    "config": """\
  baton config --port 9000                           what `baton serve --port 9000` would use
  baton config --config baton.toml --json""",
    "ray": """\
  baton ray config --model ~/models/Qwen3-0.6B --prefill 2 --decode 2 > baton.yaml
  baton ray config --prefill-max 4 --decode-max 4 > baton.yaml   one to four of each role, as the load needs
  baton ray plan baton.yaml                          who would run where, and what is missing; starts nothing
  baton ray manifest baton.yaml 2 > rayservice.yaml  the same for Kubernetes, on two pods that compute
  serve deploy baton.yaml                            Ray's own command: starts it, or changes what runs
  baton ray status                                   who runs where, and the address for clients""",
}


def options_for(command: str) -> tuple[Option, ...]:
    """The options of one command, in the order of the help. `config` takes those of every command that serves, `ray
    config` those of `serve`, too, and `check` some of them."""
    if command == "check":
        return tuple(option for option in options_for("serve") if option.name in (*CHECKED, "config", "log-level"))
    if command == RAY_CONFIG:
        return tuple(option for option in OPTIONS if {RAY_CONFIG, "serve"} & set(option.commands))
    if command != "config":
        return tuple(option for option in OPTIONS if command in option.commands)
    options: dict[str, Option] = {}
    for option in OPTIONS:
        if set(option.commands) & {"serve", "gateway", "worker"}:
            options.setdefault(option.name, option)
    return tuple(options.values())
