"""What this machine offers: cores (affinity and cgroup quota), a GPU, an address that faces a peer, a free port."""

import math
import os
import socket
import subprocess
import sys
from pathlib import Path

from protocol.errors import ConfigError, brief
from runtime.address import listen, split_endpoint
from runtime.cgroups import OF_THIS_PROCESS, ROOT, groups_of, read_if_there
from runtime.process_life import thread_environment

_ASK_TORCH = "import torch; print(torch.cuda.device_count())"
_ASK_TORCH_S = 120.0
# files of drivers that torch calls cuda: NVIDIA, NVIDIA boards, Windows hosts, AMD
_GPU_SIGNS = ("dev/nvidia*", "proc/driver/nvidia", "dev/nvhost-*", "dev/nvmap", "dev/dxg", "dev/kfd")


def count_cores(listing: Path = OF_THIS_PROCESS, root: Path = ROOT) -> int:
    """Cores that this process may use: its affinity, cut by the cgroup's CPU quota (rounded up). At least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota(listing, root)
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def available_cpus() -> tuple[int, ...]:
    """The numbers of the cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def cpu_quota(listing: Path, root: Path) -> float | None:
    """The smallest CPU quota from this process's cgroup up to the root, in cores; None without one.

    Version 2: `cpu.max` holds "quota period" or "max period". Version 1: two files below the cpu controller.
    """
    quotas = []
    for group, is_v2 in groups_of("cpu", listing, root):
        names = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quotas.append(_quota(" ".join(read_if_there(group / name) for name in names)))
    return min((quota for quota in quotas if math.isfinite(quota)), default=None)


def _quota(text: str) -> float:
    quota, period, *_ = (*text.split(), "", "")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return int(quota) / int(period)
    return math.inf  # "max", "-1", or no such file


def count_gpus(device: str, root: Path = Path("/")) -> int:
    """The number of GPUs that workers will see; 0 without a GPU driver and for `--device cpu`. ConfigError if `device`
    is cuda and this machine has no GPU driver. Workers find out whether a driver works.

    torch counts, because workers use torch: it reads CUDA_VISIBLE_DEVICES (numbers, UUIDs, MIG names), and without CUDA
    support it sees none. It runs in a separate process: importing it takes seconds and hundreds of megabytes. Raises
    ConfigError if torch does not answer.
    """
    if device == "cpu":
        return 0
    if not any(next(root.glob(sign), None) for sign in _GPU_SIGNS):
        if device == "auto":
            return 0
        raise ConfigError(
            f"--device: got {device!r}, but this machine shows no GPU (no /dev/nvidia*, no /proc/driver/nvidia);"
            " expected cpu, or auto",
            param="device",
        )

    environment = os.environ | thread_environment(1)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _ASK_TORCH],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_ASK_TORCH_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"--gpus: cannot count the GPUs: {error}", param="gpus") from error

    if done.returncode != 0 or not done.stdout.strip().isdigit():
        why = brief((done.stderr or done.stdout).strip().rpartition("\n")[2])
        raise ConfigError(f"--gpus: torch cannot count the GPUs: {why}", param="gpus")
    return int(done.stdout)


def check_port_free(host: str, port: int) -> None:
    """Raises ConfigError if `host`:`port` cannot be listened on now. Port 0 is always free."""
    listen(host, port, 1, host_name="--host", port_name="--port").close()


def address_facing(endpoint: str) -> str:
    """This machine's address on the route to `endpoint` ("tcp://10.0.0.5:7000"). Sends nothing."""
    host, port = split_endpoint(endpoint, "--gateway", min_port=1)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            found: str = probe.getsockname()[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--gateway: no route to {endpoint} ({error})", param="gateway") from error
    return found
