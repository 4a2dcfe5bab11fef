"""The settings of each kind of process: a frozen dataclass, sent as JSON on the process's command line.

A field with a `Flag` is an option of `baton` (options.py) and is declared only here. `deploy` fills the fields from
flags, environment and file. The launcher writes them on a process's command line, which `read_arguments` reads.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from functools import partial
from typing import Annotated, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from protocol.errors import ConfigError
from protocol.message import MAX_WORKER_ID_CHARS, WorkerId
from protocol.messages_gateway import Role
from protocol.messages_group import GroupPlace
from runtime.options import Flag

Device = Literal["auto", "cpu", "cuda"] | Annotated[str, Field(pattern="^cuda:[0-9]{1,3}$")]  # cuda is cuda:0
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
AttentionName = Literal["auto", "triton", "varlen", "cpu"]
TransferBackend = Literal["auto", "shm", "zmq", "cuda_ipc", "ray", "nixl"]
SchedulePolicy = Literal["fcfs", "lpm"]
RetractTo = Literal["prefill", "host", "auto"]
SpeculativeAlgorithm = Literal["eagle", "eagle3", "mtp"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
Pairing = Literal["prefix_aware", "least_loaded", "round_robin"]
LogLevel = Literal["debug", "info", "warning", "error"]
WebOrigin = Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s\p{C}]+)$")]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Port = Annotated[int, Field(ge=0, le=65535)]
MAX_PER_MACHINE = 1024
MAX_DRAFT_STEPS = 16
PerMachine = Annotated[int, Field(ge=1, le=MAX_PER_MACHINE)]  # threads, or workers
Seconds = Annotated[float, Field(gt=0)]
S = TypeVar("S", bound="Settings")


class Group(StrEnum):
    """The headings of the help, in order."""

    WHAT = "what to start"
    SCALE = "as many workers as the load needs"
    MODEL = "model"
    ADDRESS = "addresses"
    TRUST = "who may connect"
    MEMORY = "memory and batches"
    DRAFT = "speculative decoding"
    HANDOVER = "from prefill to decode"
    LOSS = "when a worker is lost"
    LIMITS = "what clients may ask"
    MACHINE = "this machine"
    DEMO = "the request"


COMPUTE = ("serve", "worker", "demo")


SERVERS = ("serve", "gateway", "worker")


class Settings:
    """JSON in and out for the dataclasses below. Adds no field."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    def to_json(self) -> str:
        """One line of JSON that `from_json` takes back."""
        return json.dumps(asdict(self))  # type: ignore[call-overload]  # every subclass is a dataclass

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The settings in `text`. ConfigError names the field, its value and what was expected."""
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            unknown_first = sorted(error.errors(), key=lambda fault: fault["type"] != "unexpected_keyword_argument")
            first = unknown_first[0]

        path = [str(part) for part in first["loc"]]
        if first["type"] == "unexpected_keyword_argument":
            name = ".".join(path)
            known = ", ".join(field.name for field in fields(cls))  # type: ignore[arg-type]
            raise ConfigError(f"{cls.__name__}: unknown key {name!r}, expected one of {known}", param=name)

        # Pydantic also names the part of a type that did not match, and the position in a list.
        name = ".".join(part for part in path if part.isidentifier())
        if first["type"] == "missing":
            raise ConfigError(f"{cls.__name__}: {name!r} is missing", param=name)
        where = f"{cls.__name__}.{name}" if name else cls.__name__
        raise ConfigError(f"{where}: got {str(first['input'])[:80]!r}: {first['msg']}", param=name or None)


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(Settings):
    """The settings that a gateway and a worker share."""

    _flag: ClassVar = partial(Flag, commands=SERVERS)

    # fmt: off
    model: Annotated[str, Flag("folder with config.json and safetensors weights, or a hub's name: org/name",
        group=Group.MODEL, commands=(*SERVERS, "demo"), metavar="DIR", aliases=("model-path",),
        unset="the bundled model")]
    context_length: Annotated[Positive | None, _flag("longest prompt plus answer, in tokens",
        group=Group.MODEL, aliases=("max-model-len",), unset="the model's own")] = None
    tokenizer: Annotated[str | None, _flag(
        "folder with tokenizer.json and chat template, or a hub's name: org/name",
        group=Group.MODEL, metavar="DIR", aliases=("tokenizer-path",), unset="the model's folder")] = None
    keys: Annotated[str | None, _flag(
        "folder of keys, made by `baton keys new`: only who is on its list may connect as a gateway or worker, and what"
        " they say is encrypted",
        group=Group.TRUST, metavar="DIR", unset="none")] = None
    trust_network: Annotated[bool, Flag(
        "without --keys, bind an address that other machines reach: any process there may pose as a worker",
        group=Group.TRUST, commands=("gateway", "worker"))] = False
    drain_timeout_s: Annotated[float, Field(ge=0), _flag(
        "how long a process that is told to end may finish what it has begun; then other workers get the rest",
        group=Group.LOSS, aliases=("shutdown-timeout",))] = 30
    log_level: Annotated[LogLevel, _flag("least severe log line to show",
        group=Group.MACHINE, metavar="LEVEL")] = "info"


    # fmt: on


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(ProcessSettings):
    """A prefill, decode or unified worker."""

    _alone: ClassVar = partial(Flag, commands=("worker",))
    _flag: ClassVar = partial(Flag, commands=("serve", "worker"))
    _memory: ClassVar = partial(_flag, group=Group.MEMORY)
    _draft: ClassVar = partial(Flag, commands=COMPUTE, group=Group.DRAFT)

    # fmt: off
    role: Annotated[Role, _alone("what this worker does",
        group=Group.WHAT, metavar="ROLE", synonyms={"null": "unified"}, aliases=("disaggregation-mode",))]
    worker_id: Annotated[WorkerId, _alone("name of this worker, unique at its gateway",
        group=Group.WHAT, metavar="NAME", unset="ROLE-HOSTNAME-XXXX",
        expected=f"1 to {MAX_WORKER_ID_CHARS} printable ASCII characters without blanks")]
    device: Annotated[Device, Flag("where workers compute; auto takes GPUs if there are any, cuda:1 is --gpus 1",
        group=Group.MODEL, commands=COMPUTE, metavar="DEVICE", synonyms={"gpu": "cuda"},
        expected="one of auto, cpu, cuda, cuda:N")] = "auto"
    dtype: Annotated[Dtype, Flag("numbers of weights and KV, auto is the checkpoint's",
        group=Group.MODEL, commands=COMPUTE, metavar="TYPE", synonyms={"half": "float16", "float": "float32"})] = "auto"
    check_weights: Annotated[bool, Flag(
        "read every weight at the start, refuse a model with NaN or infinities in it, and compare every byte of the"
        " weights between workers instead of a sample",
        group=Group.MODEL, commands=COMPUTE)] = False
    host: Annotated[str, _alone("address at which other workers reach this one",
        group=Group.ADDRESS, metavar="ADDR",
        unset="the one that faces the gateway")] = "127.0.0.1"  # its sockets bind here, on ports the system chooses
    gateway: Annotated[str, _alone("the gateway's control address, as it prints it",
        group=Group.ADDRESS, metavar="tcp://ADDR:PORT")]
    encrypt_data: Annotated[bool, _flag("with --keys, KV between hosts is encrypted too, at a price (docs/security.md)",
        group=Group.TRUST)] = False  # KV that comes to a decode worker; a prefill worker sends none that is not
    page_size: Annotated[int, Field(ge=1, le=4096), _memory("tokens in one page of KV", aliases=("block-size",))] = 16
    max_total_tokens: Annotated[Positive | None, _memory("tokens of KV that one worker holds; no request can be longer",
        unset="what memory allows and the requests can fill")] = None
    max_running_requests: Annotated[int, Field(ge=1, le=65536), _memory("requests in one worker's batch",
        aliases=("max-num-seqs",))] = 64
    chunked_prefill_size: Annotated[NotNegative, _memory(
        "tokens of one prompt in one prefill step; 0 takes whole prompts")] = 2048
    max_prefill_tokens: Annotated[Positive | None, _memory("tokens of all prompts in one prefill step",
        unset="--chunked-prefill-size; one prompt at a time if that is 0")] = None
    mixed_chunk_size: Annotated[Positive | None, _memory(
        "tokens of prompts in one step of a unified worker if others decode in it, or wait for it; whole prompts stay"
        " whole",
        unset="512 on a CPU, --max-prefill-tokens on a GPU")] = None
    enable_mixed_chunk: Annotated[bool, _memory(
        "a unified worker computes prompts in the same steps in which it decodes; false: in turns")] = True
    schedule_policy: Annotated[SchedulePolicy, _memory(
        "who is next of the requests that wait, if their priority is the same: fcfs, the first that came, or lpm, of"
        " those that came within 10 s the one of which most is cached; one of",
        metavar="RULE", aliases=("scheduling-policy",), synonyms={"priority": "fcfs"})] = "fcfs"
    max_queued_requests: Annotated[Positive, _memory(
        "requests that wait at one worker for memory; beyond it clients get 429")] = 2048
    num_reserved_decode_tokens: Annotated[NotNegative, _memory(
        "tokens that each running request has room for when another one is admitted, at most 1/16 of KV memory")] = 512
    retract_to: Annotated[RetractTo, _memory(
        "what becomes of a request that is preempted because KV memory is full: prefill computes it again, host keeps"
        " its KV in host memory until there is room, auto takes the cheaper; one of",
        metavar="WAY")] = "prefill"  # at decode and unified workers
    retract_host_gib: Annotated[int, Field(ge=1, le=65536), _memory(
        "most host memory, in GiB, that one worker takes for that with --retract-to host or auto",
        metavar="GIB")] = 4
    disable_radix_cache: Annotated[bool, _memory(
        "compute every prompt as a whole, also if an earlier one began like it",
        aliases=("no-enable-prefix-caching",))] = False
    disable_overlap_schedule: Annotated[bool, _memory("schedule and compute in turns instead of at the same time",
        aliases=("no-async-scheduling",))] = False
    disable_cuda_graph: Annotated[bool, _memory("decode on a GPU kernel by kernel")] = False
    attention_backend: Annotated[AttentionName, _memory(
        "what computes attention; auto is triton on a GPU, whose attention of a request does not depend on its batch;"
        " the products around it do (docs/operations.md); one of",
        metavar="NAME")] = "auto"
    disable_cpu_kernels: Annotated[bool, _memory(
        "compute on a CPU with torch's operations alone, as where there is no C compiler")] = False
    speculative_algorithm: Annotated[SpeculativeAlgorithm | None, _draft(
        "a draft model proposes tokens, and the model verifies several at once; answers stay the same; mtp: the"
        " draft layers in the model's own folder; one of",
        metavar="KIND", aliases=("spec-method",),
        synonyms={"EAGLE": "eagle", "EAGLE3": "eagle3", "MTP": "mtp", "NEXTN": "mtp", "mimo_mtp": "mtp"},
        unset="none: each step gives one token")] = None
    speculative_draft_model_path: Annotated[str | None, _draft(
        "folder with config.json and weights of the draft, or a hub's name: org/name",
        metavar="DIR", aliases=("speculative-draft-model", "speculative-model", "spec-model"),
        unset="the bundled model's own")] = None
    speculative_num_steps: Annotated[int, Field(ge=1, le=MAX_DRAFT_STEPS), _draft(
        "tokens that the draft proposes in each step, at most", metavar="N",
        aliases=("num-speculative-tokens", "spec-tokens"))] = 4
    speculative_adaptive: Annotated[bool, _draft(
        "propose fewer tokens where more cost time: in large batches, or if few are right; costs are measured at the"
        " start", commands=("serve", "worker"))] = True
    speculative_eagle_topk: Annotated[Positive, _draft(
        "tokens that the draft proposes after each token; 1: a chain, more: a tree", metavar="N")] = 1
    speculative_num_draft_tokens: Annotated[Positive | None, _draft(
        "tokens that the model verifies in each step", metavar="N", unset="1 + steps * top-k, at most 64")] = None
    speculative_pair_without_draft: Annotated[bool, _draft(
        "a decode worker pairs with a prefill worker that has no draft, or another one; those requests decode without"
        " a draft")] = False
    transfer_backend: Annotated[TransferBackend, _flag(
        "how KV travels; auto takes what each pair can of cuda_ipc (from device to device, on one host), shm (written"
        " in place, on one host) and zmq (over TCP); nixl goes by RDMA, ray through the Ray cluster that the host is a"
        " node of, both with packages of their own (docs/operations.md); one of",
        group=Group.HANDOVER, metavar="NAME", aliases=("disaggregation-transfer-backend",))] = "auto"
    threads: Annotated[PerMachine, Flag("compute threads of each worker",
        group=Group.MACHINE, commands=COMPUTE, unset="cores / workers")] = 1
    workers_on_host: Annotated[PerMachine, _alone(
        "workers that share this machine's memory and cores, this one included; each rank counts",
        group=Group.MACHINE, unset="--dp-size")] = 1
    workers_on_gpu: Annotated[PerMachine, _alone("workers that share the memory of this one's GPU, this one included",
        group=Group.MACHINE, unset="1 where the GPU is named, else as --workers-on-host")] = 1
    # fmt: on
    fake_model: bool = False  # tests: the model whose next token is a hash of the KV present
    group: str = ""  # the name of the group of ranks that it belongs to; "": it is alone
    group_size: Positive = 1
    group_rank: NotNegative = 0
    group_epoch: Positive = 1  # larger at each start of the group
    group_folder: str = ""  # where the ranks of this epoch meet, open to this user only

    @property
    def place(self) -> GroupPlace:
        """Where it stands in its group. A worker of its own is a group of one."""
        return GroupPlace(self.group or self.worker_id, self.group_epoch, self.group_rank, self.group_size)


@dataclass(frozen=True, kw_only=True)
class HttpLimits(Settings):
    """Bounds of what one client, and all clients together, may ask of the gateway. docs/http.md lists the answers."""

    _limit: ClassVar = partial(Flag, group=Group.LIMITS, commands=("serve", "gateway"))

    # fmt: off
    max_body_bytes: Annotated[Positive, _limit("longest body of a request", metavar="BYTES")] = 8 * 1024 * 1024
    max_header_bytes: Annotated[Positive, _limit("longest request line and headers", metavar="BYTES")] = 64 * 1024
    max_headers: Annotated[Positive, _limit("headers of one request", aliases=("h11-max-header-count",))] = 256
    max_connections: Annotated[Positive, _limit("connections of clients at once")] = 1024
    max_choices_in_flight: Annotated[Positive, _limit(
        "choices waiting or being answered at once; beyond it clients get 429")] = 2048  # prompts times n
    max_choices: Annotated[Positive, _limit("choices (n) of one prompt")] = 128
    max_prompts: Annotated[Positive, _limit("prompts in one request")] = 1024
    max_stop_strings: Annotated[Positive, _limit("stop strings of one request")] = 64
    header_timeout_s: Annotated[Seconds, _limit("time for a request's headers to arrive")] = 20
    body_timeout_s: Annotated[Seconds, _limit("time for a request's body to arrive")] = 60
    keep_alive_timeout_s: Annotated[Seconds, _limit("how long a connection without a request is kept")] = 75
    slow_reader_timeout_s: Annotated[Seconds, _limit(
        "how long a client may leave its answer unread before it is cut off")] = 60
    max_stream_backlog: Annotated[Positive, _limit(
        "tokens that wait for a client that does not read; beyond it, it is cut off",
        metavar="TOKENS")] = 16384


    # fmt: on


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(ProcessSettings):
    """The gateway. Port 0, in `port` or `control`, lets the system choose."""

    _flag: ClassVar = partial(Flag, commands=("serve", "gateway"))

    # fmt: off
    served_model_name: Annotated[tuple[str, ...], Field(min_length=1), _flag(
        "names that clients may ask for; answers tell the first. What --model was given is understood, too",
        group=Group.MODEL, metavar="NAME", unset="the folder's name")]
    model_as_typed: str | None = None  # what --model was given; understood, not listed
    chat_template: Annotated[str | None, _flag("Jinja template that turns the messages of a chat into a prompt",
        group=Group.MODEL, metavar="FILE", unset="the tokenizer's own")] = None
    tool_call_parser: Annotated[str | None, _flag(
        "format in which the model's answers call tools, by the name that vLLM or SGLang has for it, such as hermes;"
        " none: no calls are read",
        group=Group.MODEL, metavar="NAME", unset="what the chat template writes")] = None
    reasoning_parser: Annotated[str | None, _flag(
        "format in which the model's answers have thoughts, by such a name, as qwen3 or deepseek_r1; none: all is text",
        group=Group.MODEL, metavar="NAME", unset="what the chat template writes")] = None
    host: Annotated[str, _flag("address on which the gateway answers HTTP; 0.0.0.0 for every interface",
        group=Group.ADDRESS, metavar="ADDR")] = "127.0.0.1"
    port: Annotated[Port, _flag("HTTP port; 0 lets the system choose", group=Group.ADDRESS)] = 8000
    control: Annotated[str, Flag("where workers dial; port 0 lets the system choose",
        group=Group.ADDRESS, commands=("gateway",), metavar="tcp://ADDR:PORT")] = "tcp://127.0.0.1:0"
    api_key_file: Annotated[str | None, _flag(
        "file with one API key a line, readable by its owner alone: clients send one as `Authorization: Bearer KEY`,"
        " everywhere but to /health",
        group=Group.TRUST, metavar="FILE", unset="none: every client is served")] = None
    allowed_origins: Annotated[tuple[WebOrigin, ...], _flag(
        "origins of web pages whose scripts may use the gateway (CORS), such as https://app.example.com; *: any",
        group=Group.TRUST, metavar="ORIGIN", unset="none",
        expected="* or an origin such as https://app.example.com, without a path")] = ()
    pairing: Annotated[Pairing, _flag("how workers are chosen for a request",
        group=Group.HANDOVER, metavar="RULE")] = "prefix_aware"
    logprobs_mode: Annotated[LogprobsMode, _flag(
        "what log-probabilities are of: raw_logprobs, the model's own scores, or processed_logprobs, what a token is"
        " drawn from, behind penalties, biases, temperature, top-k, top-p and min-p; one of",
        group=Group.MODEL, metavar="MODE")] = "raw_logprobs"
    max_attempts: Annotated[int, Field(ge=1, le=100), _flag(
        "times that a request is given to workers before its client gets an error; 1: no retry",
        group=Group.LOSS)] = 3
    retry_wait_s: Annotated[float, Field(ge=0), _flag(
        "how long a request may lack workers, from when a lost one was last heard",
        group=Group.LOSS)] = 30  # a worker of a small model is back in 10; proxies often give up after 60
    silence_limit_s: Annotated[Seconds, _flag("a worker whose heartbeats are missing for so long counts as lost",
        group=Group.LOSS)] = 2  # heartbeats come four times a second
    launch_deadline_s: Annotated[Seconds, _flag("a worker that computes one batch for so long counts as lost",
        group=Group.LOSS)] = 120  # a whole long prompt on a slow core takes less
    # fmt: on
    limits: HttpLimits = field(default_factory=HttpLimits)


class ProcessArguments(NamedTuple, Generic[S]):
    """What a process was started with."""

    settings: S
    status_fd: int | None  # None for a process that was started by hand


def read_arguments(kind: type[S], argv: Sequence[str] | None = None) -> ProcessArguments[S]:
    """Reads `python -m ROOM --settings JSON [--status-fd N]`, from `argv` or from the command line of this process.
    ConfigError if the settings are not valid for `kind`."""
    parser = argparse.ArgumentParser(description="One process of Baton; the baton command starts it.")
    parser.add_argument("--settings", required=True, metavar="JSON", help=f"{kind.__name__} as one line of JSON")
    parser.add_argument("--status-fd", type=int, metavar="N", help="descriptor for status events")
    arguments = parser.parse_args(argv)
    settings = kind.from_json(arguments.settings)
    if arguments.status_fd is not None:
        try:
            os.fstat(arguments.status_fd)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"--status-fd: got {arguments.status_fd}, expected an open descriptor") from error
    return ProcessArguments(settings, arguments.status_fd)
