"""Which processes run, with which settings and how many threads. Pure: configuration in, process specifications out.

The order of starting:

    Plan.gateway            started first: it reports the control endpoint that it bound
    Plan.workers(control)   started next, all at once: they dial that endpoint
"""

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from deploy.drafts import check_unused, draft_settings
from deploy.machine import is_named, share_cpus, share_gpus
from deploy.model_folder import longest_context
from deploy.ranks import sizes_of
from protocol.errors import ConfigError, brief
from protocol.message import MAX_WORKER_ID_CHARS
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
    group: str = ""  # of a rank: the group that it belongs to
    is_told: bool = False  # its standard input is a pipe, on which the launcher tells it of other processes

    @property
    def unit(self) -> str:
        """The name of what starts and ends together: the group, or this process alone."""
        return self.group or self.name

    def with_settings(self, settings: Settings) -> "ProcessSpec":
        """The same process with other settings."""
        return replace(self, command=(*self.command[:-1], settings.to_json()))

    def in_epoch(self, epoch: int, folder: str) -> "ProcessSpec":
        """The same rank in the start `epoch` of its group, whose ranks meet in `folder`."""
        settings = WorkerSettings.from_json(self.command[-1])
        return self.with_settings(replace(settings, group_epoch=epoch, group_folder=folder))


def by_unit(specs: Iterable[ProcessSpec]) -> dict[str, tuple[ProcessSpec, ...]]:
    """The processes of each unit, by its name, in their order."""
    specs_of: dict[str, list[ProcessSpec]] = defaultdict(list)
    for spec in specs:
        specs_of[spec.unit].append(spec)
    return {name: tuple(of_unit) for name, of_unit in specs_of.items()}


@dataclass(frozen=True)
class Plan:
    """Everything that `baton serve` starts. Workers' settings, one for each rank, lack only the gateway's endpoint."""

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
    """Gateway and workers of `baton serve`. Ranks share `cpus`, if they are pinned, and `gpus`; `cores` bounds their
    threads."""
    check_unused(config, "speculative-pair-without-draft")  # a worker alone may meet one that has a draft
    counts = {role: config[role] for role in ("prefill", "decode", "unified")}
    sizes = sizes_of(config, model, [role for role, count in counts.items() if count])
    ranks = [
        (Role(role), fields)
        for role, count in counts.items()
        for index in range(count)
        for fields in rank_fields(f"{role}-{index}", sizes.get(role, 1))
    ]
    num_ranks = len(ranks)
    pins, threads = share_cores(cores, cpus, num_ranks, num_ranks)
    shares = share_gpus(gpus, [role.value for role, _ in ranks])

    workers = tuple(
        on_gpu(
            _worker_settings(config, role, fields, model, count, gateway="", host="127.0.0.1", workers=num_ranks),
            gpu,
            shares.count(gpu),
        )
        for (role, fields), count, gpu in zip(ranks, threads, shares, strict=True)
    )

    pin_of = {settings.worker_id: pin for settings, pin in zip(workers, pins, strict=True)}
    gateway = gateway_plan(config, model, served_model_name)
    return Plan(gateway, workers, lambda settings: worker_spec(settings, pin_of[settings.worker_id]))


def rank_fields(name: str, size: int) -> list[dict[str, Any]]:
    """The fields of WorkerSettings that name each rank of a worker. A worker of one rank is no group. ConfigError if
    the name is too long for its ranks."""
    if size == 1:
        return [{"worker_id": name}]
    most = MAX_WORKER_ID_CHARS - len(f".{size - 1}")
    if len(name) > most:
        raise ConfigError(
            f"--worker-id: got {brief(name)}, expected at most {most} characters, since each rank adds its number",
            param="worker-id",
        )
    return [
        {"worker_id": f"{name}.{rank}", "group": name, "group_size": size, "group_rank": rank} for rank in range(size)
    ]


def share_cores(
    cores: int, cpus: Sequence[int] | None, num_ranks: int, workers: int
) -> tuple[Sequence[tuple[int, ...] | None], list[int]]:
    """(cores that each rank is pinned to, if any; threads of each rank). The ranks share `cpus`, or else `cores` with
    all `workers` on this machine."""
    if cpus is None:
        return [None] * num_ranks, [threads_per_worker(cores, workers)] * num_ranks
    pins = share_cpus(cpus, num_ranks)
    return pins, [min(len(pin), cores) for pin in pins]


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
    size: int,
    host: str,
    cores: int,
    cpus: tuple[int, ...] | None = None,
    gpus: Sequence[int] = (),
) -> tuple[ProcessSpec, ...]:
    """The processes of `baton worker`, one for each of its `size` ranks. Peers dial `host`. The ranks are pinned to
    `cpus` and compute on `gpus`, if given."""
    role, workers = config["role"], workers_on_host(config, size)
    pins, threads = share_cores(cores, cpus, size, workers)
    shares = share_gpus(gpus, [role] * size)
    elsewhere = 0 if is_named(config["gpus"], config["device"]) else workers - size  # they may be on the same GPU
    specs = []
    for fields, count, pin, gpu in zip(rank_fields(worker_id, size), threads, pins, shares, strict=True):
        settings = _worker_settings(
            config, role, fields, model, count, gateway=config["gateway"], host=host, workers=workers
        )
        sharing = config["workers-on-gpu"] or shares.count(gpu) + elsewhere
        specs.append(worker_spec(on_gpu(settings, gpu, sharing), pin))
    return tuple(specs)


def workers_on_host(config: Config, size: int) -> int:
    """--workers-on-host, in which each rank of a worker counts. ConfigError if it is less than `size`."""
    workers = int(config["workers-on-host"] or size)
    if workers < size:
        raise ConfigError(
            f"--workers-on-host: got {workers}, expected at least {size}, since each rank counts",
            param="workers-on-host",
        )
    return workers


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
    return ProcessSpec(GATEWAY, _python(GATEWAY, settings), thread_environment(1), is_told=True)


def worker_spec(settings: WorkerSettings, cpus: tuple[int, ...] | None = None) -> ProcessSpec:
    """The process of a worker."""
    environment = thread_environment(settings.threads) | _ucx_environment(settings)
    return ProcessSpec(settings.worker_id, _python("deploy.worker", settings), environment, cpus, settings.group)


def _ucx_environment(settings: WorkerSettings) -> dict[str, str]:
    """Limits UCX, which NIXL uses, to the loopback device. By default UCX listens on every network device."""
    if settings.transfer_backend != "nixl" or not is_loopback(settings.host):
        return {}
    return {_UCX_DEVICES: os.environ.get(_UCX_DEVICES, "lo")}


def at_addresses(gateway: ProcessSpec, http: str, control: str) -> ProcessSpec:
    """The specification to restart the gateway at the same addresses, which clients and workers use."""
    settings = GatewaySettings.from_json(gateway.command[-1])
    return gateway.with_settings(replace(settings, port=urlsplit(http).port or settings.port, control=control))


def as_large(workers: Sequence[ProcessSpec], kv_pages: Mapping[str, int]) -> list[ProcessSpec]:
    """The specifications to restart workers on the same GPUs with the same numbers of KV pages, by name. The other
    workers keep their memory, so only the ranks of one group divide the free memory again."""
    before = [WorkerSettings.from_json(worker.command[-1]) for worker in workers]
    on_same_gpu = Counter((settings.group, settings.device) for settings in before if settings.group)
    specs = []
    for worker, settings in zip(workers, before, strict=True):
        num_tokens = kv_pages[worker.name] * settings.page_size
        after = replace(
            settings,
            max_total_tokens=min(num_tokens, settings.max_total_tokens or num_tokens),
            workers_on_host=settings.group_size,
            workers_on_gpu=on_same_gpu[settings.group, settings.device] or 1,
        )
        specs.append(worker.with_settings(after))
    return specs


def _python(room: str, settings: Settings) -> tuple[str, ...]:
    # -P: do not import a folder of the working directory that has the name of one of our packages
    return (sys.executable, "-P", "-m", room, "--settings", settings.to_json())


def _worker_settings(
    config: Config,
    role: Role,
    fields: Mapping[str, Any],
    model: Path,
    threads: int,
    *,
    gateway: str,
    host: str,
    workers: int,
) -> WorkerSettings:
    return config.make(
        WorkerSettings,
        **fields,
        role=role,
        gateway=gateway,
        model=str(model),
        host=host,
        workers_on_host=workers,
        threads=config["threads"] or min(threads, MAX_PER_MACHINE),
        **draft_settings(config, model, config["context-length"] or longest_context(model)),
    )
