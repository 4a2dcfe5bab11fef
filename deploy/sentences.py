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
from deploy.model_folder import NAMED_AT_HUB, is_at_hub, model_name
from deploy.options import options_for
from runtime.layered_config import Config, Origin
from runtime.options import Kind
from runtime.settings import WorkerSettings

PROMPT = "Once upon a time"
TOKEN_IDS = {"prompt": [1, 2, 3], "return_token_ids": True}  # a request to a model without a tokenizer
_TELLING = ("warning", "error", "critical")
# options that a replacement worker does not take over; rank_flags tells the size of its group
_OF_THIS_COMMAND = ("config", "log-level", "cpus", "dp-size", "enable-dp-attention", "tp-size")


def serve_lines(
    http: str,
    served_model_name: str,
    workers: str,
    seconds: float,
    *,
    with_text: bool,
    api_key_file: str | None = None,
) -> list[str]:
    """The ready line of `baton serve` and a curl command. `workers` is from describe_workers."""
    url = local_url(http)
    body: dict[str, object] = {"model": served_model_name, "prompt": PROMPT, "max_tokens": 64, "stream": True}
    if not with_text:
        body |= TOKEN_IDS
    return [
        f"Ready: {served_model_name} at {url} with {workers}, in {seconds:.1f} s. Ctrl-C ends it. Try:",
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


def describe_workers(ranks: Sequence[WorkerSettings]) -> str:
    """`1 prefill worker + 2 decode workers of 4 ranks`, and the draft that they have, if any."""
    told = []
    for role in dict.fromkeys(rank.role.value for rank in ranks):
        workers = [rank for rank in ranks if rank.role == role and rank.group_rank == 0]
        size = workers[0].group_size
        of_ranks = f" of {size} ranks{' each' * (len(workers) > 1)}" if size > 1 else ""
        told.append(count_roles([role] * len(workers)) + of_ranks)
    return " + ".join(told) + describe_draft(ranks[0])


def describe_ranks(ranks: Sequence[WorkerSettings]) -> list[str]:
    """One line for each group: `group decode-0 has the ranks decode-0.0 to decode-0.3; each has 2 threads and counts as
    one of 5 workers on this machine`."""
    lines = []
    for group in dict.fromkeys(rank.group for rank in ranks if rank.group):
        of_group = [rank for rank in ranks if rank.group == group]
        threads = " or ".join(map(str, sorted({rank.threads for rank in of_group})))
        lines.append(
            f"group {group} has the ranks {of_group[0].worker_id} to {of_group[-1].worker_id}; each has {threads}"
            f" thread{'' if threads == '1' else 's'} and counts as one of {of_group[0].workers_on_host} workers on this"
            " machine"
        )
    return lines


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
    """A process that has ended, of a group the rank that ended first. `code` is the exit status, or minus the signal;
    `last_line` is the last of its log."""

    name: str
    code: int
    last_line: str
    failure: str = ""  # the error that the process reported, and its code
    failure_code: str = ""
    was_ready: bool = True
    killed_because: str = ""  # why the supervisor killed it
    paused: tuple[str, ...] = ()  # processes of its unit that were paused when it failed, or shortly before


def describe_leaving(name: str, num_requests: int, bound_s: float) -> str:
    """What a process waits for that was told to end."""
    run = "1 request runs" if num_requests == 1 else f"{num_requests} requests run"
    return f"{name}: {run}; ending in at most {bound_s:g} s; again to end now"


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
    missing = [role] if role == "unified" else [other for other in ("prefill", "decode") if other not in left]
    joined = "one joins" if len(missing) == 1 else "one of each joins"
    return (
        f"No {' and no '.join(missing)} worker of this command is left: requests are answered 503 until {joined}. "
        f"Start another: {' and: '.join(start(each) for each in missing)}"
    )


def replacement(role: str, control: str, flags: Sequence[str], workers: int, on_gpu: Sequence[str] = ()) -> str:
    """The command that starts a worker of `role`. `workers` counts those on this machine, a group by its ranks;
    `on_gpu` are flags of its ranks and GPUs."""
    words = ["baton", "worker", "--role", role, "--gateway", control, *flags, *on_gpu]
    if workers > 1:
        words += ["--workers-on-host", str(workers)]
    return shlex.join(words)


def rank_flags(ranks: Sequence[WorkerSettings]) -> tuple[str, ...]:
    """The flags of `baton worker` that make so many ranks and name their GPUs; empty for one worker without a GPU."""
    first = ranks[0]
    flags = ("--dp-size", str(len(ranks)), "--enable-dp-attention") if len(ranks) > 1 else ()
    gpus = sorted({gpu for rank in ranks if (gpu := gpu_of(rank)) is not None})
    if not gpus:
        return flags
    sharing = ("--workers-on-gpu", str(first.workers_on_gpu)) if first.workers_on_gpu > 1 else ()
    return (*flags, "--gpus", ",".join(map(str, gpus)), *sharing)


def worker_flags(config: Config) -> tuple[str, ...]:
    """The options that `baton worker` shares with the command of `config` and that differ from their defaults, as
    flags of `baton worker`. `--host` and `--gpus` are not shared: they mean something else there."""
    flags: list[str] = []
    for option in options_for("worker"):
        setting = config.settings.get(option.name)
        if setting is None or setting.option is not option or setting.origin is Origin.DEFAULT:
            continue
        if option.name in _OF_THIS_COMMAND:
            continue
        text, may_be_hubs = setting.text, option.name in ("model", *NAMED_AT_HUB)
        if option.is_path and not (may_be_hubs and is_at_hub(text)):  # the user may type the command in another folder
            text = str(Path(text).expanduser().resolve())
        flags += [f"{option.flag}={text}"] if option.kind is Kind.SWITCH else [option.flag, text]
    return tuple(flags)
