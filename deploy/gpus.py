"""Which GPU each worker computes on: reads --gpus and --device and gives each worker a GPU. Pure.

GPU numbers are torch's: 0, 1, ... among the GPUs in CUDA_VISIBLE_DEVICES. A worker is told its number and still sees
all GPUs, because CUDA IPC maps only memory of GPUs that the process sees.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from deploy.number_lists import NumberList, show_numbers
from protocol.brief import brief
from protocol.errors import ConfigError

ALL = "all"
_LIST = NumberList("gpus", "GPU", "all, or GPUs such as 0,1 or 0-3")


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
    found = _LIST.read(asked, range(count))
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
