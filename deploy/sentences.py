"""Sentences that `baton` prints: when all is ready, with a command to paste, and when a process ended by itself. Pure.

Those for an end say how it ended, what still serves, and how to start another. They count only the workers that this
command started.
"""

import json
import shlex
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.console import log_level_of
from deploy.layout import gpu_of
from deploy.model_folder import model_name
from deploy.options import options_for
from runtime.layered_config import Config, Origin
from runtime.options import Kind
from runtime.settings import WorkerSettings

PROMPT = "Once upon a time"
TOKEN_IDS = {"prompt": [1, 2, 3], "return_token_ids": True}  # a request to a model without a tokenizer
_TELLING = ("warning", "error", "critical")
_OF_THIS_COMMAND = ("config", "log-level", "cpus")  # options that a replacement worker does not take over


def serve_lines(
    http: str,
    served_model_name: str,
    workers: Sequence[str],
    seconds: float,
    *,
    with_text: bool,
    api_key_file: str | None = None,
    draft: str = "",
) -> list[str]:
    """The ready line of `baton serve` and a curl command. `workers` are the workers' roles, `draft` is from
    describe_draft."""
    url = local_url(http)
    body: dict[str, object] = {"model": served_model_name, "prompt": PROMPT, "max_tokens": 64, "stream": True}
    if not with_text:
        body |= TOKEN_IDS
    return [
        f"Ready: {served_model_name} at {url} with {count_roles(workers)}{draft}, in {seconds:.1f} s. Ctrl-C ends it."
        " Try:",
        curl(url, body, api_key_file),
    ]


def gateway_lines(http: str, control: str, model: str | None, trust: str = "") -> list[str]:
    """The ready line of `baton gateway` and the commands that join workers. `model` is None for the bundled model;
    `trust` is --keys or --trust-network, or empty."""
    served = ("" if model is None else f" --model {shlex.quote(model)}") + (f" {trust}" if trust else "")
    return [
        f"Ready: gateway at {local_url(http)}, workers dial {control}. Ctrl-C ends it. Join workers with these"
        " commands; where two share a host, add --workers-on-host 2 to each:",
        f"baton worker --role prefill --gateway {dialable(control)}{served}",
        f"baton worker --role decode --gateway {dialable(control)}{served}",
    ]


def worker_lines(worker_id: str, endpoint: str) -> list[str]:
    """The ready line of `baton worker`."""
    return [f"Ready: {worker_id} serves for the gateway at {endpoint}. Ctrl-C ends it."]


def count_roles(workers: Sequence[str]) -> str:
    """`2 prefill workers + 1 decode worker`."""
    counts = {role: workers.count(role) for role in dict.fromkeys(workers)}
    return " + ".join(f"{count} {role} worker{'' if count == 1 else 's'}" for role, count in counts.items())


def describe_draft(settings: WorkerSettings) -> str:
    """`, eagle draft story-eagle with up to 4 steps`; empty without a draft."""
    if settings.speculative_algorithm is None:
        return ""
    name = model_name(Path(settings.speculative_draft_model_path or ""))
    return f", {settings.speculative_algorithm} draft {name} with up to {settings.speculative_num_steps} steps"


def curl(url: str, body: dict[str, object], api_key_file: str | None = None) -> str:
    """A shell command that posts `body` to /v1/completions, with the first key of `api_key_file`, if given."""
    written = shlex.quote(json.dumps(body, ensure_ascii=False))
    key = ""
    if api_key_file is not None:  # the command reads the key from the file, so that no terminal shows it
        key = f""" -H "Authorization: Bearer $(awk '$1 ~ /^[^#]/ {{print $1; exit}}' {shlex.quote(api_key_file)})\""""
    return f"curl -N -s {url}/v1/completions -H 'Content-Type: application/json'{key} -d {written}"


def local_url(http: str) -> str:
    """`http`, with a loopback address in place of a wildcard."""
    return http.replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:")


def dialable(control: str) -> str:
    """`control`, with the placeholder THIS_HOST in place of a wildcard."""
    return control.replace("://0.0.0.0:", "://THIS_HOST:").replace("://[::]:", "://THIS_HOST:")


@dataclass(frozen=True)
class Ended:
    """A process that has ended. `code` is the exit status, or minus the signal; `last_line` is the last of its log."""

    name: str
    code: int
    last_line: str
    failure: str = ""  # the error that the process reported, and its code
    failure_code: str = ""
    was_ready: bool = True
    killed_because: str = ""  # why the supervisor killed it


def describe_end(ended: Ended) -> str:
    """`decode-0 was killed by SIGKILL`, or `decode-0 ended with exit status 1; its last line: ...`. The reason that the
    process or its supervisor gave replaces the last line."""
    if ended.killed_because:
        return f"{ended.name} {ended.killed_because} and was killed"
    how = f"ended with {describe_exit(ended.code)}" if ended.code >= 0 else f"was {describe_exit(ended.code)}"
    if ended.failure:
        return f"{ended.name} {how}: {ended.failure}"
    return f"{ended.name} {how}{last_words(ended)}"


def describe_exit(code: int) -> str:
    """`exit status 1` or `killed by SIGKILL`."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def last_words(ended: Ended) -> str:
    """`; its last line: ...` if the process failed or the line is a warning or error; else empty."""
    line = ended.last_line.strip()
    return f"; its last line: {line}" if line and (ended.code > 0 or log_level_of(line) in _TELLING) else ""


def describe_loss(role: str, left: Sequence[str], start: Callable[[str], str]) -> str:
    """What the loss of a worker means. `left` are the roles of the remaining workers; `start(role)` is the command that
    starts a worker."""
    if "unified" in left or {"prefill", "decode"} <= set(left):
        verb = "serves" if len(left) == 1 else "serve"
        return f"{count_roles(left)} still {verb}: new requests go there. Start another: {start(role)}"
    missing = [role] if role == "unified" else [each for each in ("prefill", "decode") if each not in left]
    joined = "one joins" if len(missing) == 1 else "one of each joins"
    return (
        f"No {' and no '.join(missing)} worker of this command is left: requests are answered 503 until {joined}. "
        f"Start another: {' and: '.join(start(each) for each in missing)}"
    )


def replacement(role: str, control: str, flags: Sequence[str], workers: int, on_gpu: Sequence[str] = ()) -> str:
    """The command that starts a worker of `role`. `workers` counts those on this machine; `on_gpu` are GPU flags."""
    words = ["baton", "worker", "--role", role, "--gateway", control, *flags, *on_gpu]
    if workers > 1:
        words += ["--workers-on-host", str(workers)]
    return shlex.join(words)


def gpu_flags(settings: WorkerSettings) -> tuple[str, ...]:
    """The flags of `baton worker` that name the worker's GPU; empty without a GPU."""
    gpu = gpu_of(settings)
    if gpu is None:
        return ()
    sharing = ("--workers-on-gpu", str(settings.workers_on_gpu)) if settings.workers_on_gpu > 1 else ()
    return ("--gpus", str(gpu), *sharing)


def worker_flags(config: Config) -> tuple[str, ...]:
    """The options that `baton worker` shares with the command of `config` and that differ from their defaults, as
    flags of `baton worker`. `--host` and `--gpus` are not shared: they mean something else there."""
    found: list[str] = []
    for option in options_for("worker"):
        setting = config.settings.get(option.name)
        if setting is None or setting.option is not option or setting.origin is Origin.DEFAULT:
            continue
        if option.name in _OF_THIS_COMMAND:
            continue
        # the user may type the command in another folder
        text = str(Path(setting.text).expanduser().resolve()) if option.is_path else setting.text
        found += [f"{option.flag}={text}"] if option.kind is Kind.SWITCH else [option.flag, text]
    return tuple(found)
