"""The commands that serve: everything on this machine, a gateway alone, or one worker. Each returns an exit status.

A worker that ends later is reported and the rest stays up (the gateway answers 503 for what needs it); a gateway that
ends takes the rest with it. What it does not know: how processes are started (launcher.py) or laid out (layout.py).
"""

import secrets
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from deploy.console import Console
from deploy.endings import Ended, count_left, describe_end, describe_loss, replacement, worker_flags
from deploy.host import address_facing, check_device, check_port_free, check_worker_id, count_cores
from deploy.invitation import gateway_lines, serve_lines, worker_lines
from deploy.launcher import Launcher, StartFailed, Stopped
from deploy.layout import GATEWAY, Plan, check_counts, gateway_plan, serve_plan, worker_plan
from deploy.model_folder import PROJECT, check_context_length, find_model, has_tokenizer, model_name
from protocol.errors import ConfigError
from runtime.address import split_endpoint
from runtime.clock import MonotonicClock
from runtime.layered_config import Config
from runtime.process_life import StopSignal

Start = Callable[[Launcher], list[str]]  # starts processes; returns what to print then
Tell = Callable[[Ended, Collection[str]], str]  # what to say of an end, given the names of all that have ended


def serve(config: Config, console: Console) -> int:
    """`baton serve`."""
    check_counts(*(config.integer(role) for role in ("prefill", "decode", "unified")))
    model = find_model(config.optional_text("model"))
    name = config.optional_text("served-model-name") or model_name(model)
    plan = serve_plan(config, model, name, count_cores())
    check_device(config.text("device"))
    check_context_length(model, config.optional_integer("context-length"))
    check_port_free(config.text("host"), config.integer("port"))
    return run_plan(plan, console, name, with_text=has_tokenizer(model), flags=worker_flags(config))


def run_plan(
    plan: Plan, console: Console, served_model_name: str, *, with_text: bool, flags: Sequence[str] = ()
) -> int:
    """Starts gateway and workers, invites to a first request, serves. `flags` start another such worker."""
    clock = MonotonicClock()
    began = clock.now()
    roles = {settings.worker_id: settings.role.value for settings in plan.worker_settings}
    control = ""

    def start(launcher: Launcher) -> list[str]:
        nonlocal control
        ready = start_plan(launcher, plan)
        control = str(ready["control"])
        seconds = clock.now() - began
        return serve_lines(str(ready["http"]), served_model_name, list(roles.values()), seconds, with_text=with_text)

    def tell(ended: Ended, gone: Collection[str]) -> str:
        if ended.name not in roles:
            return f"{describe_end(ended)}. Everything stops."
        loss = describe_loss(
            roles[ended.name],
            count_left(roles, gone),
            lambda role: replacement(role, control, flags, len(roles)),
        )
        return f"{describe_end(ended)}. {loss}"

    return run(start, console, GATEWAY, tell)


def start_plan(launcher: Launcher, plan: Plan) -> Mapping[str, Any]:
    """The gateway's ready fields, once every worker serves too. Raises StartFailed or Stopped."""
    ready = launcher.start([plan.gateway])[plan.gateway.name]
    launcher.start(plan.workers(str(ready["control"])))
    return ready


def gateway(config: Config, console: Console) -> int:
    """`baton gateway`."""
    model = find_model(config.optional_text("model"))
    split_endpoint(config.text("control"), "--control")
    check_context_length(model, config.optional_integer("context-length"))
    name = config.optional_text("served-model-name") or model_name(model)
    check_port_free(config.text("host"), config.integer("port"))
    spec = gateway_plan(config, model, name)

    def start(launcher: Launcher) -> list[str]:
        ready = launcher.start([spec])[spec.name]
        named = None if config.optional_text("model") is None else str(model)
        return gateway_lines(str(ready["http"]), str(ready["control"]), named)

    return run(start, console, needed=spec.name)


def worker(config: Config, console: Console) -> int:
    """`baton worker`."""
    for name in ("role", "gateway"):
        if config.settings[name].value is None:
            raise ConfigError(f"--{name} is missing; see baton worker --help", param=name)
    endpoint = config.text("gateway")
    split_endpoint(endpoint, "--gateway", min_port=1)
    check_device(config.text("device"))
    model = find_model(config.optional_text("model"))
    check_context_length(model, config.optional_integer("context-length"))
    host = config.optional_text("host") or address_facing(endpoint)
    role = config.text("role")
    check_worker_id(config.optional_text("worker-id"))
    worker_id = config.optional_text("worker-id") or f"{role}-{socket.gethostname()}-{secrets.token_hex(2)}"
    spec = worker_plan(config, model, worker_id, host, count_cores())

    def start(launcher: Launcher) -> list[str]:
        launcher.start([spec])
        return worker_lines(worker_id, endpoint)

    return run(start, console, needed=worker_id)


def run(start: Start, console: Console, needed: str, tell: Tell = lambda ended, _: describe_end(ended)) -> int:
    """Starts, shows what `start` returned, and serves until a signal (status 0) or the end of `needed` (status 1)."""
    with StopSignal() as stop, Launcher(console, stop, MonotonicClock(), PROJECT) as launcher:
        try:
            console.serving(start(launcher))
            return watch(launcher, stop, console, needed, tell)
        except StartFailed as error:
            console.close()
            launcher.stop()  # first, so that the reason is the last line
            console.trouble(error.message)
            return error.exit_status
        except Stopped:
            console.close()
            console.note("stopping")
            return 0


def watch(launcher: Launcher, stop: StopSignal, console: Console, needed: str, tell: Tell) -> int:
    """Turns until a signal comes or `needed` ends; other processes that end are reported."""
    gone: set[str] = set()
    while not stop.is_set():
        endings = launcher.turn(timeout_s=1.0)
        gone |= {ended.name for ended in endings}
        for ended in endings:
            console.trouble(tell(ended, gone))
        if needed in gone:
            return 1
    console.note("stopping")
    return 0
