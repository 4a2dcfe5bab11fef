"""Which cores each worker is pinned to and which GPU it computes on: reads --cpus, --gpus and --device. Pure.

GPU numbers are torch's: 0, 1, ... among the GPUs in CUDA_VISIBLE_DEVICES. A worker is told its number and still sees
all GPUs, because CUDA IPC maps only memory of GPUs that the process sees.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from protocol.errors import ConfigError, brief

MAX_CHARS = 1000
_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
ALL = "all"


@dataclass(frozen=True)
class NumberList:
    """Reads lists of cores or GPUs, written like `0-3,6`. Errors name a list by these fields: its option without
    dashes, the noun of a number, the expected text."""

    option: str
    noun: str
    expected: str

    def read(self, text: str, available: Sequence[int]) -> tuple[int, ...]:
        """The numbers in the order of the list. Raises ConfigError for an unavailable or repeated number."""
        found: list[int] = []
        for part in text[:MAX_CHARS].split(","):
            match = _PART.fullmatch(part.strip())
            if match is None or len(text) > MAX_CHARS:
                raise self._wrong(text, f", expected {self.expected}")
            first, last = int(match[1]), int(match[2] or match[1])
            if first > last:
                raise self._wrong(text, f", expected {last}-{first}")

            numbers = range(first, last + 1)
            unknown = next((each for each in numbers if each not in available), None)
            if unknown is not None:
                there = f"there are {show_numbers(available)}" if available else f"there is no {self.noun} at all"
                raise self._wrong(text, f", but there is no {self.noun} {unknown} for this process; {there}")
            twice = next((each for each in numbers if each in found), None)
            if twice is not None:
                raise self._wrong(text, f", which names {self.noun} {twice} twice")
            found += numbers

        return tuple(found)

    def _wrong(self, text: str, what: str) -> ConfigError:
        return ConfigError(f"--{self.option}: got {text[:80]!r}{what}", param=self.option)


CORES = NumberList("cpus", "core", "auto, none, or cores such as 0-3,6")
GPUS = NumberList("gpus", "GPU", "all, or GPUs such as 0,1 or 0-3")


def show_numbers(numbers: Sequence[int]) -> str:
    """`0-3,6`."""
    parts: list[list[int]] = []
    for each in sorted(numbers):
        if parts and each == parts[-1][-1] + 1:
            parts[-1].append(each)
        else:
            parts.append([each])
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
    found = GPUS.read(asked, range(count))
    if one and found != (int(one),):
        raise ConfigError(f"--gpus: got {asked[:80]!r}, but --device is {device}", param="gpus")
    return found


def read_gpu(asked: str | None, device: str, count: int) -> int | None:
    """The GPU of a single worker: the named one, else the first; None for the CPU. Raises ConfigError like `read_gpus`,
    and if several GPUs are named."""
    found = read_gpus(asked or ALL, device, count)
    if is_named(asked, device) and len(found) > 1:
        raise ConfigError(f"--gpus: got {brief(asked)}, expected one GPU for one worker", param="gpus")
    return found[0] if found else None


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
        of_role = Counter(place for place, each in zip(places, roles, strict=False) if each == role)
        partner = _partner(index, roles)
        first = 0 if partner is None else places[partner] + 1
        by_turn = [(first + turn) % len(gpus) for turn in range(len(gpus))]
        places.append(min(by_turn, key=lambda place: (together[place], of_role[place])))
    return [gpus[place] for place in places]


def _partner(index: int, roles: Sequence[str]) -> int | None:
    """The index of the prefill worker that is the partner of a later decode worker; None without one."""
    earlier = [each for each, role in enumerate(roles[:index]) if role == "prefill"]
    place = roles[:index].count(roles[index])
    return earlier[place] if roles[index] == "decode" and place < len(earlier) else None


def describe_gpus(gpu_of: Mapping[str, int | None]) -> list[str]:
    """One line for each used GPU, such as `GPU 1: decode-0`. `gpu_of` maps worker names to GPUs."""
    lines = []
    for gpu in sorted({each for each in gpu_of.values() if each is not None}):
        names = [name for name, each in gpu_of.items() if each == gpu]
        divided = f", which divide its memory into {len(names)} parts" if len(names) > 1 else ""
        lines.append(f"GPU {gpu}: {' and '.join(names)}{divided}")
    return lines
