"""The commands that serve: everything on this machine, a gateway alone, or one worker. Each returns an exit status.

A worker that ends later is reported and the rest stays up (the gateway answers 503 for what needs it); a gateway that
ends takes the rest with it. What it does not know: how processes are started (launcher.py) or laid out (layout.py).
"""

import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any

from deploy.console import Console
from deploy.host import address_facing, check_port_free, count_cores, split_endpoint
from deploy.invitation import gateway_lines, serve_lines, worker_lines
from deploy.launcher import Ended, Launcher, StartFailed, Stopped
from deploy.layout import GATEWAY, Plan, check_counts, gateway_plan, serve_plan, worker_plan
from deploy.model_folder import PROJECT, find_model, has_tokenizer, model_name
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock
from runtime.layered_config import Config
from runtime.process_life import StopSignal


def serve(config: Config, console: Console) -> int:
    """`baton serve`."""
    check_counts(*(config.integer(role) for role in ("prefill", "decode", "unified")))
    model = find_model(config.optional_text("model"))
    name = config.optional_text("served-model-name") or model_name(model)
    plan = serve_plan(config, model, name, count_cores())
    check_port_free(config.text("host"), config.integer("port"))
    return run_plan(plan, console, name, with_text=has_tokenizer(model))


def run_plan(plan: Plan, console: Console, served_model_name: str, *, with_text: bool) -> int:
    """Starts gateway and workers, invites to a first request, serves."""
    clock = MonotonicClock()
    began = clock.now()

    def start(launcher: Launcher) -> list[str]:
        http = str(start_plan(launcher, plan)["http"])
        workers = [settings.role.value for settings in plan.worker_settings]
        return serve_lines(http, served_model_name, workers, clock.now() - began, with_text=with_text)

    return run(start, console, needed=GATEWAY)


def start_plan(launcher: Launcher, plan: Plan) -> Mapping[str, Any]:
    """The gateway's ready fields, once every worker serves too. Raises StartFailed or Stopped."""
    ready = launcher.start([plan.gateway])[plan.gateway.name]
    launcher.start(plan.workers(str(ready["control"])))
    return ready


def gateway(config: Config, console: Console) -> int:
    """`baton gateway`."""
    model = find_model(config.optional_text("model"))
    split_endpoint(config.text("control"), "--control")
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
    split_endpoint(endpoint, "--gateway")
    model = find_model(config.optional_text("model"))
    host = config.optional_text("host") or address_facing(endpoint)
    role = config.text("role")
    worker_id = config.optional_text("worker-id") or f"{role}-{socket.gethostname()}-{secrets.token_hex(2)}"
    spec = worker_plan(config, model, worker_id, host, count_cores())

    def start(launcher: Launcher) -> list[str]:
        launcher.start([spec])
        return worker_lines(worker_id, endpoint)

    return run(start, console, needed=worker_id)


def run(start: Callable[[Launcher], list[str]], console: Console, needed: str) -> int:
    """Starts, shows what `start` returned, and serves until a signal (status 0) or the end of `needed` (status 1)."""
    with StopSignal() as stop, Launcher(console, stop, MonotonicClock(), PROJECT) as launcher:
        try:
            console.serving(start(launcher))
            return watch(launcher, stop, console, needed)
        except StartFailed as error:
            console.close()
            launcher.stop()  # first, so that the reason is the last line
            console.trouble(error.message)
            return error.exit_status
        except Stopped:
            console.close()
            console.note("stopping")
            return 0


def watch(launcher: Launcher, stop: StopSignal, console: Console, needed: str) -> int:
    """Turns until a signal comes or `needed` ends; other processes that end are reported."""
    while not stop.is_set():
        for ended in launcher.turn(timeout_s=1.0):
            console.trouble(describe_end(ended))
            if ended.name == needed:
                return 1
    console.note("stopping")
    return 0


def describe_end(ended: Ended) -> str:
    """One sentence on a process that ended by itself."""
    last = f"; its last line: {ended.last_line.strip()}" if ended.last_line else ""
    return f"{ended.name} has ended ({ended.how}){last}"
