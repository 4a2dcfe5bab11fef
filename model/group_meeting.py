"""Where the ranks of a group meet, and get what they compute together with: a folder on their host.

Ranks on CPUs share memory (`collectives_host.py`), ranks on GPUs use NCCL over loopback (`collectives_torch.py`).
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from model.collectives_host import HostCollectives, open_host
from model.collectives_torch import TorchCollectives, open_nccl, why
from protocol.errors import ConfigError, Unavailable
from protocol.messages_group import GroupPlace

MEETING_FILE: Final = "ranks"

AnyCollectives = HostCollectives | TorchCollectives


def open_collectives(
    place: GroupPlace, folder: str, device: torch.device, *, debug: bool = False, timeout_s: float
) -> AnyCollectives:
    """Joins the group at `place`, and waits for its other ranks. `folder` is the group's own.

    `debug`: ranks compare their calls also where that costs a call more. `timeout_s`: so long it waits for a rank that
    does not come, now and in each call.
    Unavailable if a rank does not come; ConfigError if a rank comes twice, the device has no NCCL, or two ranks are on
    one GPU, which NCCL refuses or hangs on.
    """
    if device.type == "cuda" and not dist.is_nccl_available():
        raise ConfigError(f"device: got {device}, but this torch has no NCCL, which a group needs there")
    store = dist.PrefixStore(f"{place.group}/{place.epoch}", dist.FileStore(str(Path(folder) / MEETING_FILE), -1))
    try:
        if device.type != "cuda":
            return open_host(place, folder, lambda: _meet(store, place, timeout_s), timeout_s)
        store.set(_gpu_key(place.rank), gpu_id(device))
        _meet(store, place, timeout_s)
        check_gpus(place.group, [store.get(_gpu_key(rank)).decode() for rank in range(place.size)])
        return TorchCollectives(open_nccl(store, place, timeout_s), place, device, debug=debug)
    except (RuntimeError, OSError) as error:
        said = why(error) if isinstance(error, RuntimeError) else str(error)
        raise Unavailable(f"group {place.group}: rank {place.rank} cannot connect: {said}") from error


def _meet(store: Any, place: GroupPlace, timeout_s: float) -> None:
    """Waits until all ranks have come."""
    keys = [f"rank-{rank}" for rank in range(place.size)]
    if store.add(keys[place.rank], 1) > 1:
        again = f"rank {place.rank} of {place.size} has come before in epoch {place.epoch}"
        raise ConfigError(f"group {place.group}: {again}, expected every rank once")
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        came = f"{place.size - len(missing)} of {place.size} ranks came within {timeout_s:g} s"
        raise Unavailable(f"group {place.group}: {came}, expected rank {', '.join(missing)} too") from error


def _gpu_key(rank: int) -> str:
    return f"gpu-{rank}"


def gpu_id(device: torch.device) -> str:
    """The UUID of this GPU. It is the same in every process, whatever number the GPU has there."""
    return str(torch.cuda.get_device_properties(device).uuid)


def check_gpus(group: str, ids: Sequence[str]) -> None:
    """`ids` are the GPUs of the ranks, in order. ConfigError if two ranks have the same; all ranks raise the same."""
    for rank, gpu in enumerate(ids):
        if (first := ids.index(gpu)) != rank:
            raise ConfigError(
                f"gpus: ranks {first} and {rank} of group {group} are both on the GPU {gpu}, expected a GPU of its own"
                f" for each of {len(ids)} ranks: name more with --gpus, or start fewer ranks with --dp-size",
                param="gpus",
            )
