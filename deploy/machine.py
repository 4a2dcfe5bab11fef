"""What this machine offers (cores, GPUs, addresses), and how workers share it: reads --cpus, --gpus and --device.

GPU numbers are torch's: 0, 1, ... among the GPUs in CUDA_VISIBLE_DEVICES. A worker is told its number and still sees
all GPUs, because CUDA IPC maps only memory of GPUs that the process sees.
"""

import math
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from protocol.errors import ConfigError, brief
from runtime.address import listen, split_endpoint
from runtime.cgroups import OF_THIS_PROCESS, ROOT, groups_of, read_if_there
from runtime.process_life import thread_environment

_ASK_TORCH = "import torch; print(torch.cuda.device_count())"
_ASK_TORCH_S = 120.0
# files of drivers that torch calls cuda: NVIDIA, NVIDIA boards, Windows hosts, AMD
_GPU_SIGNS = ("dev/nvidia*", "proc/driver/nvidia", "dev/nvhost-*", "dev/nvmap", "dev/dxg", "dev/kfd")
MAX_CHARS = 1000
_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
ALL = "all"


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
        reason = brief((done.stderr or done.stdout).strip().rpartition("\n")[2])
        raise ConfigError(f"--gpus: torch cannot count the GPUs: {reason}", param="gpus")
    return int(done.stdout)


def check_port_free(host: str, port: int) -> None:
    """Raises ConfigError if `host`:`port` cannot be listened on now. Port 0 is always free."""
    listen(host, port, 1, host_flag="--host", port_flag="--port").close()


def address_facing(endpoint: str) -> str:
    """This machine's address on the route to `endpoint` ("tcp://10.0.0.5:7000"). Sends nothing."""
    host, port = split_endpoint(endpoint, "--gateway", min_port=1)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            own_address: str = probe.getsockname()[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--gateway: no route to {endpoint} ({error})", param="gateway") from error
    return own_address


@dataclass(frozen=True)
class NumberList:
    """Reads lists of cores or GPUs, written like `0-3,6`. Errors name a list by these fields: its option without
    dashes, the noun of a number, the expected text."""

    option: str
    noun: str
    expected: str

    def read(self, text: str, available: Sequence[int]) -> tuple[int, ...]:
        """The numbers in the order of the list. Raises ConfigError for an unavailable or repeated number."""
        taken: list[int] = []
        for part in text[:MAX_CHARS].split(","):
            match = _PART.fullmatch(part.strip())
            if match is None or len(text) > MAX_CHARS:
                raise self._wrong(text, f", expected {self.expected}")
            first, last = int(match[1]), int(match[2] or match[1])
            if first > last:
                raise self._wrong(text, f", expected {last}-{first}")

            numbers = range(first, last + 1)
            unknown = next((number for number in numbers if number not in available), None)
            if unknown is not None:
                there = f"there are {show_numbers(available)}" if available else f"there is no {self.noun} at all"
                raise self._wrong(text, f", but there is no {self.noun} {unknown} for this process; {there}")
            twice = next((number for number in numbers if number in taken), None)
            if twice is not None:
                raise self._wrong(text, f", which names {self.noun} {twice} twice")
            taken += numbers

        return tuple(taken)

    def _wrong(self, text: str, what: str) -> ConfigError:
        return ConfigError(f"--{self.option}: got {text[:80]!r}{what}", param=self.option)


CORES = NumberList("cpus", "core", "auto, none, or cores such as 0-3,6")
GPUS = NumberList("gpus", "GPU", "all, or GPUs such as 0,1 or 0-3")


def show_numbers(numbers: Sequence[int]) -> str:
    """`0-3,6`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def read_cpus(text: str, available: Sequence[int]) -> tuple[int, ...] | None:
    """The cores that workers share: all `available` cores for "auto", None (no pinning) for "none", else the cores of a
    list such as "0-3,6". Raises ConfigError for a wrong list."""
    if text == "none":
        return None
    return tuple(sorted(available)) if text == "auto" else CORES.read(text, available)


def share_cpus(cpus: Sequence[int], num_workers: int) -> list[tuple[int, ...]]:
    """Each worker's cores, in order. Shares differ by one core at most. With fewer cores than workers, each worker gets
    one core, and several workers share it."""
    if len(cpus) < num_workers:
        return [(cpus[index % len(cpus)],) for index in range(num_workers)]
    bounds = [-(-len(cpus) * index // num_workers) for index in range(num_workers + 1)]
    return [tuple(cpus[start:end]) for start, end in pairwise(bounds)]


def read_gpus(asked: str, device: str, count: int) -> tuple[int, ...]:
    """The GPUs that workers may compute on, of `count` visible ones; empty for the CPU. `asked` is --gpus; `device` is
    --device: auto, cpu, cuda or cuda:N. Raises ConfigError if the two contradict each other or name a missing GPU."""
    one = device.partition(":")[2]
    if one and int(one) >= count:
        there = f"there are {show_numbers(range(count))}" if count else "torch finds no GPU here"
        raise ConfigError(f"--device: got {device!r}, but {there}", param="device")
    if device == "cuda" and not count:
        raise ConfigError("--device: got 'cuda', but torch finds no GPU here", param="device")

    if asked == ALL:
        return (int(one),) if one else () if device == "cpu" else tuple(range(count))
    if device == "cpu":
        raise ConfigError(f"--gpus: got {asked[:80]!r}, but --device is cpu", param="gpus")
    gpus = GPUS.read(asked, range(count))
    if one and gpus != (int(one),):
        raise ConfigError(f"--gpus: got {asked[:80]!r}, but --device is {device}", param="gpus")
    return gpus


def read_worker_gpus(asked: str | None, device: str, count: int, size: int) -> tuple[int, ...]:
    """The GPUs of a single worker of `size` ranks: the named ones, else the first; empty for the CPU. Raises
    ConfigError like `read_gpus`, and if more GPUs are named than there are ranks."""
    gpus = read_gpus(asked or ALL, device, count)
    if is_named(asked, device) and len(gpus) > size:
        expected = "one GPU for one worker" if size == 1 else f"at most {size} GPUs for {size} ranks"
        raise ConfigError(f"--gpus: got {brief(asked)}, expected {expected}", param="gpus")
    return gpus[:size]


def is_named(asked: str | None, device: str) -> bool:
    """Whether --gpus or --device names a GPU."""
    return asked not in (None, ALL) or ":" in device


def share_gpus(gpus: Sequence[int], roles: Sequence[str]) -> list[int | None]:
    """Each worker's GPU, in the order of `roles`, one role a worker. None without GPUs.

    A worker gets the GPU with the fewest workers; of equal ones, the GPU with the fewest workers of its role; of those,
    the next after its partner's GPU. The first prefill and the first decode worker are partners, and so on.
    """
    if not gpus:
        return [None] * len(roles)

    places: list[int] = []  # for each worker so far, the index in `gpus`
    for index, role in enumerate(roles):
        together = Counter(places)
        of_role = Counter(position for position, other in zip(places, roles, strict=False) if other == role)
        partner = _partner(index, roles)
        first = 0 if partner is None else places[partner] + 1
        by_turn = [(first + turn) % len(gpus) for turn in range(len(gpus))]
        places.append(min(by_turn, key=lambda position: (together[position], of_role[position])))
    return [gpus[position] for position in places]


def _partner(index: int, roles: Sequence[str]) -> int | None:
    """The index of the prefill worker that is the partner of a later decode worker; None without one."""
    earlier = [number for number, role in enumerate(roles[:index]) if role == "prefill"]
    position = roles[:index].count(roles[index])
    return earlier[position] if roles[index] == "decode" and position < len(earlier) else None


def describe_gpus(gpu_of: Mapping[str, int | None]) -> list[str]:
    """One line for each used GPU, such as `GPU 1: decode-0`. `gpu_of` maps worker names to GPUs."""
    lines = []
    for gpu in sorted({number for number in gpu_of.values() if number is not None}):
        names = [name for name, number in gpu_of.items() if number == gpu]
        divided = f", which divide its memory into {len(names)} parts" if len(names) > 1 else ""
        lines.append(f"GPU {gpu}: {' and '.join(names)}{divided}")
    return lines
