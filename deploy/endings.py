"""Sentences for a process that ended by itself: how it ended, what still serves, how to start another. Pure.

They count only the workers that this command started.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.console import log_level_of
from deploy.invitation import count_roles
from deploy.layout import gpu_of
from deploy.options import options_for
from deploy.processes import describe_exit
from deploy.supervision import Life, State
from runtime.layered_config import Config, Origin
from runtime.options import Kind
from runtime.settings import WorkerSettings

_TELLING = ("warning", "error", "critical")
_OF_THIS_COMMAND = ("config", "log-level", "cpus")  # options that a replacement worker does not take over


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


def describe_restart(life: Life, max_restarts: int) -> str:
    """What follows the end of a process, by its state in `life`."""
    if life.state is State.GIVEN_UP:
        if max_restarts == 0:
            return "it is not started again (--max-restarts 0)"
        if life.failures > max_restarts:
            return f"it is given up after {max_restarts} restart{'s' * (max_restarts > 1)} in a row"
        return "it is given up, as another start would end the same way"
    wait_s = life.start_at - life.since
    if wait_s <= 0:
        return "it is started again at once"
    return f"it is started again in {wait_s:g} s, restart {life.failures} of {max_restarts} in a row"


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
