"""What a process is told at its start: one frozen dataclass per kind of process, as JSON on its command line.

`deploy` fills these in from flags, environment and file; a process reads them with `from_json`, which refuses an
unknown key or a wrong value by name. What it does not know: where a value came from.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from protocol.errors import ConfigError
from protocol.messages_gateway import Role
from runtime.nearest_name import nearest_name

Device = Annotated[str, Field(pattern="^(auto|cpu|cuda(:[0-9]{1,3})?)$")]  # cuda is cuda:0
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
AttentionName = Literal["auto", "triton", "varlen", "cpu"]  # every name that --attention-backend takes
TransferBackend = Literal["auto", "shm", "zmq", "cuda_ipc", "ray", "nixl"]  # every name that --transfer-backend takes
Pairing = Literal["least_loaded", "round_robin"]
LogLevel = Literal["debug", "info", "warning", "error"]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]


class Settings:
    """JSON in and out for the dataclasses below; adds no field."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    def to_json(self) -> str:
        """One line of JSON that `from_json` takes back."""
        return json.dumps(asdict(self))  # type: ignore[call-overload]  # every subclass is a dataclass

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The settings in `text`; ConfigError names the field, the value got and what was expected."""
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            unknown_first = sorted(error.errors(), key=lambda each: each["type"] != "unexpected_keyword_argument")
            first = unknown_first[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "unexpected_keyword_argument":
            known = [each.name for each in fields(cls)]  # type: ignore[arg-type]
            near = nearest_name(name, known)
            hint = f"did you mean {near!r}?" if near else f"expected one of {', '.join(known)}"
            raise ConfigError(f"{cls.__name__}: unknown key {name!r}, {hint}", param=name)
        if first["type"] == "missing":
            raise ConfigError(f"{cls.__name__}: {name!r} is missing", param=name)
        where = f"{cls.__name__}.{name}" if name else cls.__name__
        raise ConfigError(f"{where}: got {str(first['input'])[:80]!r}: {first['msg']}", param=name or None)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(Settings):
    """A prefill, decode or unified worker."""

    worker_id: str
    role: Role
    gateway: str  # the gateway's control endpoint, "tcp://127.0.0.1:40123"
    model: str  # folder
    device: Device = "auto"
    dtype: Dtype = "auto"
    page_size: Positive = 16  # tokens
    max_total_tokens: Positive | None = None  # capacity of the page pool; None: from the memory available
    max_running_requests: Positive = 64
    chunked_prefill_size: NotNegative = 2048  # tokens; 0: whole prompts
    context_length: Positive | None = None  # tokens, prompt and outputs together; None: the model's own
    overlap: bool = True
    cuda_graphs: bool = True  # for decodes, on a GPU
    attention_backend: AttentionName = "auto"
    cpu_kernels: bool = True  # on a CPU, where there is a C compiler
    transfer_backend: TransferBackend = "auto"
    host: str = "127.0.0.1"  # where peers reach this worker; its sockets bind here, on ports the system chooses
    keys: str | None = None  # folder; None: whoever reaches a socket may connect
    encrypt_data: bool = False  # KV that comes to a decode worker; a prefill worker sends none that is not
    trust_network: bool = False  # without keys: bind a host that is not this machine's alone
    workers_on_host: Positive = 1  # share of this host's memory: one part in so many
    workers_on_gpu: Positive = 1  # share of its GPU's memory, likewise
    num_threads: Positive = 1
    check_weights: bool = False  # read every weight at the start and refuse NaN and infinities
    fake_model: bool = False  # tests: the model whose next token is a hash of the KV present
    log_level: LogLevel = "info"


@dataclass(frozen=True, kw_only=True)
class HttpLimits(Settings):
    """What one client, and all of them together, may ask of the gateway. docs/http.md says what it answers beyond."""

    max_body_bytes: Positive = 8 * 1024 * 1024
    max_header_bytes: Positive = 64 * 1024  # request line and headers of one request
    max_headers: Positive = 256
    max_connections: Positive = 1024
    max_choices_in_flight: Positive = 2048  # prompts times n, of all requests that wait or are answered
    max_choices: Positive = 128  # n
    max_prompts: Positive = 1024  # of one request
    max_stop_strings: Positive = 64
    header_timeout_s: Seconds = 20.0
    body_timeout_s: Seconds = 60.0
    keep_alive_s: Seconds = 75.0  # a connection without a request
    slow_reader_timeout_s: Seconds = 60.0  # an answer that its client does not read
    max_stream_backlog: Positive = 16384  # tokens that wait for one such client


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(Settings):
    """The gateway. Port 0, in `port` or `control`, lets the system choose."""

    host: str = "127.0.0.1"
    port: Port = 8000
    control: str = "tcp://127.0.0.1:0"  # where workers dial
    keys: str | None = None  # folder; None: whoever reaches `control` may join
    trust_network: bool = False  # without keys: bind `control` where other machines reach it
    model: str  # folder with generation_config.json
    tokenizer: str | None = None  # folder with tokenizer.json; None: the model's
    chat_template: str | None = None  # file; None: the one beside the tokenizer
    served_model_name: str  # the one in every answer
    more_model_names: tuple[str, ...] = ()  # that are served and listed, too
    model_as_typed: str | None = None  # what --model was given; understood, not listed
    api_key_file: str | None = None  # None: whoever reaches HTTP is served
    allowed_origins: tuple[str, ...] = ()  # of pages in browsers; "*": of any
    context_length: Positive | None = None
    pairing: Pairing = "least_loaded"
    max_attempts: Positive = 3  # of a request on a pair, the first one among them
    retry_wait_s: Annotated[float, Field(ge=0)] = 4.0  # for a pair, from when the lost worker was last heard
    launch_deadline_s: Seconds = 120.0  # a worker that is in one launch for so long is lost
    limits: HttpLimits = field(default_factory=HttpLimits)
    log_level: LogLevel = "info"
