"""Which processes run, with which settings and how many threads. Pure: configuration in, process specifications out.

The order of starting:

    Plan.gateway            started first: it reports the control endpoint that it bound
    Plan.workers(control)   started next, all at once: they dial that endpoint
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from deploy.drafts import check_unused, draft_settings
from deploy.machine import is_named, share_cpus, share_gpus
from deploy.model_folder import longest_context
from protocol.errors import ConfigError
from protocol.messages_gateway import Role
from runtime.address import is_loopback
from runtime.layered_config import Config
from runtime.process_life import thread_environment
from runtime.settings import MAX_PER_MACHINE, GatewaySettings, HttpLimits, Settings, WorkerSettings

GATEWAY = "gateway"
_UCX_DEVICES: Final = "UCX_NET_DEVICES"


@dataclass(frozen=True)
class ProcessSpec:
    """One process to start. `environment` is added to the launcher's own; the launcher appends `--status-fd N`."""

    name: str
    command: tuple[str, ...]  # the last word holds the settings
    environment: Mapping[str, str]
    cpus: tuple[int, ...] | None = None  # cores it may run on; None: the launcher's cores

    def with_settings(self, settings: Settings) -> "ProcessSpec":
        """The same process with other settings."""
        return replace(self, command=(*self.command[:-1], settings.to_json()))


@dataclass(frozen=True)
class Plan:
    """Everything that `baton serve` starts. Workers' settings lack only the gateway's endpoint."""

    gateway: ProcessSpec
    worker_settings: tuple[WorkerSettings, ...]
    make_worker: Callable[[WorkerSettings], ProcessSpec]

    def workers(self, control: str) -> tuple[ProcessSpec, ...]:
        """The workers' specifications, once the gateway listens at `control`."""
        return tuple(self.make_worker(replace(settings, gateway=control)) for settings in self.worker_settings)


def serve_plan(
    config: Config,
    model: Path,
    served_model_name: str,
    cores: int,
    cpus: Sequence[int] | None = None,
    gpus: Sequence[int] = (),
) -> Plan:
    """Gateway and workers of `baton serve`. Workers share `cpus`, if they are pinned, and `gpus`; `cores` bounds their
    threads."""
    check_unused(config, "speculative-pair-without-draft")  # a worker alone may meet one that has a draft
    counts = {role: config[role] for role in ("prefill", "decode", "unified")}
    num_workers = sum(counts.values())
    names = [(Role(role), f"{role}-{index}") for role, count in counts.items() for index in range(count)]

    pins: Sequence[tuple[int, ...] | None] = [None] * num_workers if cpus is None else share_cpus(cpus, num_workers)
    threads = [threads_per_worker(cores, num_workers) if pin is None else min(len(pin), cores) for pin in pins]
    shares = share_gpus(gpus, [role.value for role, _ in names])

    workers = tuple(
        on_gpu(
            _worker_settings(config, role, name, model, count, gateway="", host="127.0.0.1", workers=num_workers),
            gpu,
            shares.count(gpu),
        )
        for (role, name), count, gpu in zip(names, threads, shares, strict=True)
    )

    pin_of = {settings.worker_id: pin for settings, pin in zip(workers, pins, strict=True)}
    gateway = gateway_plan(config, model, served_model_name)
    return Plan(gateway, workers, lambda settings: worker_spec(settings, pin_of[settings.worker_id]))


def check_counts(prefill: int, decode: int, unified: int) -> None:
    """Raises ConfigError without a pair or a unified worker, and for prefill without decode or the reverse."""
    if bool(prefill) != bool(decode):
        have, lack = ("prefill", "decode") if prefill else ("decode", "prefill")
        raise ConfigError(
            f"--{have} {prefill or decode} with --{lack} 0: a {have} worker needs at least one {lack} worker",
            param=lack,
        )
    if not prefill and not unified:
        raise ConfigError(
            "--prefill 0 --decode 0 --unified 0: expected at least one prefill and one decode worker, or one unified",
            param="unified",
        )


def gateway_plan(config: Config, model: Path, served_model_name: str) -> ProcessSpec:
    """The process of the gateway, with `baton gateway` as with `baton serve`."""
    names = dict.fromkeys((served_model_name, *(config["served-model-name"] or ())))
    settings = config.make(
        GatewaySettings,
        model=str(model),
        served_model_name=tuple(names),
        model_as_typed=config["model"],
        limits=config.make(HttpLimits),
    )
    return gateway_spec(settings)


def worker_plan(
    config: Config,
    model: Path,
    worker_id: str,
    host: str,
    cores: int,
    cpus: tuple[int, ...] | None = None,
    gpu: int | None = None,
) -> ProcessSpec:
    """The process of `baton worker`. Peers dial `host`. The worker is pinned to `cpus`, if given, and computes on
    `gpu`, if given."""
    workers = config["workers-on-host"]
    threads = threads_per_worker(cores, workers) if cpus is None else min(len(cpus), cores)
    settings = _worker_settings(
        config, config["role"], worker_id, model, threads, gateway=config["gateway"], host=host, workers=workers
    )
    alone = is_named(config["gpus"], config["device"])
    settings = on_gpu(settings, gpu, config["workers-on-gpu"] or (1 if alone else workers))
    return worker_spec(settings, cpus)


def on_gpu(settings: WorkerSettings, gpu: int | None, workers: int) -> WorkerSettings:
    """Puts the worker on a GPU that `workers` workers share. None changes nothing."""
    return settings if gpu is None else replace(settings, device=f"cuda:{gpu}", workers_on_gpu=workers)


def gpu_of(settings: WorkerSettings) -> int | None:
    """The worker's GPU number; None if it has none."""
    number = settings.device.partition(":")[2]
    return int(number) if number else None


def threads_per_worker(cores: int, num_workers: int) -> int:
    """An equal share of the cores, at least 1."""
    return max(1, cores // num_workers)


def gateway_spec(settings: GatewaySettings) -> ProcessSpec:
    """The process of a gateway."""
    return ProcessSpec(GATEWAY, _python(GATEWAY, settings), thread_environment(1))


def worker_spec(settings: WorkerSettings, cpus: tuple[int, ...] | None = None) -> ProcessSpec:
    """The process of a worker."""
    environment = thread_environment(settings.threads) | _ucx_environment(settings)
    return ProcessSpec(settings.worker_id, _python(settings.role.value, settings), environment, cpus)


def _ucx_environment(settings: WorkerSettings) -> dict[str, str]:
    """Limits UCX, which NIXL uses, to the loopback device. By default UCX listens on every network device."""
    if settings.transfer_backend != "nixl" or not is_loopback(settings.host):
        return {}
    return {_UCX_DEVICES: os.environ.get(_UCX_DEVICES, "lo")}


def at_addresses(gateway: ProcessSpec, http: str, control: str) -> ProcessSpec:
    """The specification to restart the gateway at the same addresses, which clients and workers use."""
    settings = GatewaySettings.from_json(gateway.command[-1])
    return gateway.with_settings(replace(settings, port=urlsplit(http).port or settings.port, control=control))


def as_large(worker: ProcessSpec, kv_pages: int) -> ProcessSpec:
    """The specification to restart the worker on the same GPU with the same number of KV pages. The other workers keep
    their memory, so the free memory must not be divided again."""
    settings = WorkerSettings.from_json(worker.command[-1])
    num_tokens = kv_pages * settings.page_size
    most = num_tokens if settings.max_total_tokens is None else min(num_tokens, settings.max_total_tokens)
    return worker.with_settings(replace(settings, max_total_tokens=most, workers_on_host=1, workers_on_gpu=1))


def _python(room: str, settings: Settings) -> tuple[str, ...]:
    # -P: do not import a folder of the working directory that has the name of one of our packages
    return (sys.executable, "-P", "-m", room, "--settings", settings.to_json())


def _worker_settings(
    config: Config, role: Role, worker_id: str, model: Path, threads: int, *, gateway: str, host: str, workers: int
) -> WorkerSettings:
    return config.make(
        WorkerSettings,
        worker_id=worker_id,
        role=role,
        gateway=gateway,
        model=str(model),
        host=host,
        workers_on_host=workers,
        threads=config["threads"] or min(threads, MAX_PER_MACHINE),
        **draft_settings(config, model, config["context-length"] or longest_context(model)),
    )
