"""The commands that serve: everything on this machine, a gateway alone, or one worker. Each returns an exit status.

The supervisor restarts a process that ends, unless it was told to end. If it gives up a worker of `baton serve`, the
others go on, and the gateway answers 503 to requests that need that worker. If it gives up the gateway or a single
worker, the command ends. So it does, with status 0, when that one was told to end.
"""

import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from deploy.console import Console
from deploy.launcher import Launcher, StartFailed, Stopped
from deploy.layout import (
    GATEWAY,
    Plan,
    ProcessSpec,
    as_large,
    at_addresses,
    check_counts,
    gateway_plan,
    gpu_of,
    serve_plan,
    worker_plan,
)
from deploy.machine import (
    address_facing,
    available_cpus,
    check_port_free,
    count_cores,
    count_gpus,
    describe_gpus,
    read_cpus,
    read_gpus,
    read_worker_gpus,
)
from deploy.model_folder import (
    check_capacity,
    check_context_length,
    find_model,
    find_template,
    find_tokenizer,
    has_tokenizer,
    is_checkpoint,
    model_elsewhere,
    model_name,
    with_hub_folders,
)
from deploy.options import Rules
from deploy.ranks import sizes_of
from deploy.sentences import (
    describe_loss,
    describe_ranks,
    describe_workers,
    gateway_lines,
    rank_flags,
    replacement,
    serve_lines,
    worker_flags,
    worker_lines,
)
from deploy.supervisor import Gone, Supervisor
from protocol.errors import ConfigError, brief
from protocol.messages_gateway import Role
from runtime.address import is_loopback, refuse_exposed, split_endpoint
from runtime.clock import MonotonicClock
from runtime.keys import read_api_keys, read_keys
from runtime.layered_config import Config
from runtime.process_life import StopSignal
from runtime.settings import WorkerSettings

Up = tuple[Sequence[ProcessSpec], list[str]]  # what is started again, if it ends; the lines to print
Start = Callable[[Launcher], Up]


def serve(config: Config, console: Console) -> int:
    """`baton serve`."""
    check_counts(*(config[role] for role in ("prefill", "decode", "unified")))
    config = with_hub_folders(config)
    model = find_model(config["model"], config["revision"])
    tokenizer = find_texts(config, model)
    name = first_name(config, model)
    cpus = read_cpus(config["cpus"], available_cpus())
    gpus = read_gpus(config["gpus"], config["device"], count_gpus(config["device"]))
    plan = serve_plan(config, model, name, count_cores(), cpus, gpus)

    check_keys(config, for_gateway=True)
    check_lengths(config, model, console)
    check_port_free(config["host"], config["port"])

    flags, rules = worker_flags(config), config.make(Rules)
    with_text, keys_file = has_tokenizer(tokenizer), config.path("api-key-file")
    return run_plan(plan, console, name, with_text=with_text, flags=flags, rules=rules, api_key_file=keys_file)


def find_texts(config: Config, model: Path) -> Path:
    """The folder of the tokenizer: `--tokenizer`, or the model's folder. Raises ConfigError if `--tokenizer` or
    `--chat-template` cannot be found, or for a template without a tokenizer."""
    template = config["chat-template"]
    find_template(template)
    texts = find_tokenizer(config["tokenizer"]) or model
    if template is not None and not has_tokenizer(texts):
        raise ConfigError(
            f"--chat-template: got {brief(template)}, but folder {brief(str(texts))} has no tokenizer.json, so no chat"
            " can be answered; expected --tokenizer DIR beside it",
            param="chat-template",
        )
    return texts


def check_keys(config: Config, *, for_gateway: bool) -> None:
    """Checks the folder of --keys and, for a gateway, the file of --api-key-file, if given, before any process starts.
    Raises ConfigError."""
    folder = config.path("keys")
    if folder is not None:
        read_keys(folder, for_gateway=for_gateway)
    elif "encrypt-data" in config.settings and config["encrypt-data"]:
        raise ConfigError("--encrypt-data needs --keys DIR: `baton keys new` makes one", param="encrypt-data")
    if for_gateway and (file := config.path("api-key-file")) is not None:
        read_api_keys(file)


def first_name(config: Config, model: Path) -> str:
    """The model's name in answers. Raises ConfigError if a later name is a model's folder and --model is missing: the
    flag then took the MODEL typed behind it, and the bundled model would get its name."""
    names: tuple[str, ...] = config["served-model-name"] or ()
    if config["model"] is None:
        for name in names[1:]:
            if is_checkpoint(name):
                raise ConfigError(
                    f"--served-model-name: got {brief(name)}, which is the folder of a model, and no --model; to serve"
                    " it, put it before this flag or behind --model",
                    param="served-model-name",
                )
    return (*names, model_name(model))[0]


def check_exposed(config: Config, host: str, name: str) -> None:
    """Raises ConfigError if other machines could reach the workers' sockets without keys."""
    has_keys = config["keys"] is not None
    trust_network = config["trust-network"]
    refuse_exposed(host, name, has_keys=has_keys, trust_network=trust_network)
    is_nixl = "transfer-backend" in config.settings and config["transfer-backend"] == "nixl"
    if is_nixl and not trust_network and not is_loopback(host):
        raise ConfigError(
            f"{name}: {host[:80]!r} can be reached from other machines, and --transfer-backend nixl opens ports there"
            " that check no keys; expected --trust-network, which allows any process that reaches them to read KV",
            param="transfer-backend",
        )


def check_lengths(config: Config, model: Path, console: Console) -> None:
    """Checks the limits on a request's length, and shows a remark if the model allows longer requests."""
    context_length = config["context-length"]
    check_context_length(model, context_length)
    if note := check_capacity(model, context_length, config["max-total-tokens"]):
        console.note(note)


def run_plan(
    plan: Plan,
    console: Console,
    served_model_name: str,
    *,
    with_text: bool,
    rules: Rules,
    flags: Sequence[str] = (),
    api_key_file: str | None = None,
) -> int:
    """Starts gateway and workers, prints the ready lines, serves. `flags` are those of a replacement worker."""
    clock = MonotonicClock()
    began = clock.now()
    ranks_of = {unit: ranks_in(plan, unit) for unit in dict.fromkeys(map(unit_of, plan.worker_settings))}
    roles = {unit: ranks[0].role.value for unit, ranks in ranks_of.items()}
    control = ""
    tell_places(console, plan.worker_settings)

    def start(launcher: Launcher) -> Up:
        nonlocal control
        ready = start_plan(launcher, plan)
        http, control = str(ready[GATEWAY]["http"]), str(ready[GATEWAY]["control"])
        seconds = clock.now() - began
        workers = describe_workers(plan.worker_settings)
        lines = serve_lines(http, served_model_name, workers, seconds, with_text=with_text, api_key_file=api_key_file)
        return [at_addresses(plan.gateway, http, control), *as_large(plan.workers(control), pages_of(ready))], lines

    def flags_like(unit: str, role: str) -> tuple[str, ...]:
        """For a worker like `unit`, or like the first of another role."""
        return rank_flags(ranks_of[unit if roles[unit] == role else next(u for u in roles if roles[u] == role)])

    def tell(unit: str, gone: Collection[str]) -> str:
        if unit not in roles:
            return "Everything stops"
        return describe_loss(
            roles[unit],
            [role for other, role in roles.items() if other not in gone],
            lambda role: replacement(role, control, flags, len(plan.worker_settings), flags_like(unit, role)),
        )

    return run(start, console, GATEWAY, rules, tell, {unit: ranks[0].role for unit, ranks in ranks_of.items()})


def unit_of(settings: WorkerSettings) -> str:
    """The name of what starts and ends with this worker."""
    return settings.group or settings.worker_id


def ranks_in(plan: Plan, unit: str) -> list[WorkerSettings]:
    """The settings of the ranks of a group, or those of a worker alone."""
    return [settings for settings in plan.worker_settings if unit_of(settings) == unit]


def tell_places(console: Console, ranks: Sequence[WorkerSettings]) -> None:
    """Says which GPUs and which share of the machine the ranks have."""
    for line in describe_gpus({settings.worker_id: gpu_of(settings) for settings in ranks}) + describe_ranks(ranks):
        console.note(line)


def pages_of(ready: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """The KV pages that workers have told."""
    return {name: int(event["kv_pages"]) for name, event in ready.items() if "kv_pages" in event}


def start_plan(launcher: Launcher, plan: Plan) -> dict[str, Mapping[str, Any]]:
    """Starts the plan; returns the fields of each ready event by name. Raises StartFailed or Stopped."""
    ready = launcher.start([plan.gateway])
    return ready | launcher.start(plan.workers(str(ready[GATEWAY]["control"])))


def gateway(config: Config, console: Console) -> int:
    """`baton gateway`."""
    spec = lone_gateway(config)
    check_port_free(config["host"], config["port"])

    def start(launcher: Launcher) -> Up:
        ready = launcher.start([spec])[spec.name]
        http, control = str(ready["http"]), str(ready["control"])
        named = model_elsewhere(config["model"])
        trust = "--trust-network" if config["trust-network"] else ""
        trust = trust if config["keys"] is None else "--keys DIR"
        return [at_addresses(spec, http, control)], gateway_lines(http, control, named, trust)

    return run(start, console, spec.name, config.make(Rules))


def lone_gateway(config: Config) -> ProcessSpec:
    """The process of `baton gateway`. Raises ConfigError if it could not serve; its port may be in use."""
    config = with_hub_folders(config)
    model = find_model(config["model"], config["revision"])
    find_texts(config, model)
    check_keys(config, for_gateway=True)
    check_exposed(config, split_endpoint(config["control"], "--control").host, "--control")
    check_context_length(model, config["context-length"])
    name = first_name(config, model)
    return gateway_plan(config, model, name)


def worker(config: Config, console: Console) -> int:
    """`baton worker`."""
    for name in ("role", "gateway"):
        if config.settings[name].value is None:
            raise ConfigError(f"--{name} is missing; see baton worker --help", param=name)

    endpoint = config["gateway"]
    split_endpoint(endpoint, "--gateway", min_port=1)
    worker_id = config["worker-id"] or f"{config['role']}-{socket.gethostname()}-{secrets.token_hex(2)}"
    specs = lone_worker(config, console, worker_id)

    def start(launcher: Launcher) -> Up:
        return as_large(specs, pages_of(launcher.start(specs))), worker_lines(worker_id, endpoint)

    return run(start, console, worker_id, config.make(Rules))


def lone_worker(config: Config, console: Console, worker_id: str) -> tuple[ProcessSpec, ...]:
    """The processes of `baton worker`, one for each rank, and a word to the user on where they run. Raises ConfigError
    if they could not serve."""
    config = with_hub_folders(config)
    model = find_model(config["model"], config["revision"])
    find_tokenizer(config["tokenizer"])
    check_lengths(config, model, console)
    check_keys(config, for_gateway=False)
    host, role = config["host"] or address_facing(config["gateway"]), config["role"]
    if role != Role.UNIFIED:  # a unified worker binds no socket
        check_exposed(config, host, "--host")

    cpus = read_cpus(config["cpus"], available_cpus())
    device = config["device"]
    size = sizes_of(config, model, [role])[role]
    gpus = read_worker_gpus(config["gpus"], device, count_gpus(device), size)
    if not gpus and (sharing := config["workers-on-gpu"]) is not None:
        raise ConfigError(
            f"--workers-on-gpu: got {sharing}, but this worker computes on the CPU; expected --workers-on-host",
            param="workers-on-gpu",
        )

    specs = worker_plan(config, model, worker_id, size, host, count_cores(), cpus, gpus)
    tell_places(console, [WorkerSettings.from_json(spec.command[-1]) for spec in specs])
    return specs


def run(
    start: Start,
    console: Console,
    needed: str,
    rules: Rules,
    tell: Gone = lambda _name, _given_up: "",
    roles: Mapping[str, Role] = MappingProxyType({}),
) -> int:
    """Calls `start`, prints its lines, and supervises the processes until a signal (exit status 0) or until the unit
    `needed` is given up (exit status 1) or has left (0). `roles`: see Supervisor."""
    clock = MonotonicClock()
    with StopSignal() as stop, Launcher(console, stop, clock, epochs_after=time.time_ns() // 10**6) as launcher:
        try:
            specs, lines = start(launcher)
            console.serving(lines)
            supervisor = Supervisor(launcher, specs, rules, clock, console, tell, roles)
            while not stop.is_set():
                supervisor.turn()
                if needed in supervisor.given_up:
                    return 1
                if needed in supervisor.left:
                    return 0
            raise Stopped
        except StartFailed as error:
            console.close()
            launcher.stop()  # first, so that the reason is the last line
            console.trouble(error.message)
            return error.exit_status
        except Stopped:
            console.close()
            console.note("stopping")
            return 0
