"""Which GPU each worker computes on. Pure: what was asked, and how many GPUs there are, in; each worker's GPU out.

GPUs have the numbers that torch gives them: 0, 1, ... among those that CUDA_VISIBLE_DEVICES leaves. Workers are told
their number and see all GPUs, because CUDA IPC maps memory of no GPU that the process does not see. What it does not
know: how GPUs are counted (host.py), or how a worker's memory is sized (model/kv_sizing.py).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from deploy.number_lists import NumberList, show_numbers
from protocol.brief import brief
from protocol.errors import ConfigError

ALL = "all"
_LIST = NumberList("gpus", "GPU", "all, or GPUs such as 0,1 or 0-3")


def read_gpus(asked: str, device: str, count: int) -> tuple[int, ...]:
    """The GPUs that workers may compute on, when `count` are visible; none where they are to use the CPU. `asked` is
    what --gpus says, `device` what --device says: auto, cpu, cuda, or one GPU as cuda:N. ConfigError where the two
    contradict one another or name a GPU that is not there."""
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
    """The GPU of a worker that is alone: the one that is named, else the first. None for the CPU. ConfigError as above,
    and where several are named."""
    found = read_gpus(asked or ALL, device, count)
    if is_named(asked, device) and len(found) > 1:
        raise ConfigError(f"--gpus: got {brief(asked)}, expected one GPU for one worker", param="gpus")
    return found[0] if found else None


def is_named(asked: str | None, device: str) -> bool:
    """Whether --gpus or --device says which GPU, rather than any."""
    return asked not in (None, ALL) or ":" in device


def share_gpus(gpus: Sequence[int], roles: Sequence[str]) -> list[int | None]:
    """Each worker's GPU, in the order of the workers, which are given by their roles. None without GPUs.

    A worker goes to a GPU that has the fewest workers. Among several it goes to one that has the fewest of its role,
    and among several of those to the next after its partner's, so that the two are apart. The first prefill and the
    first decode worker are partners, and so on.
    """
    if not gpus:
        return [None] * len(roles)
    places: list[int] = []  # in `gpus`, of the workers so far
    for index, role in enumerate(roles):
        together = Counter(places)
        of_role = Counter(place for place, each in zip(places, roles, strict=False) if each == role)
        partner = _partner(index, roles)
        first = 0 if partner is None else places[partner] + 1
        by_turn = [(first + turn) % len(gpus) for turn in range(len(gpus))]
        places.append(min(by_turn, key=lambda place: (together[place], of_role[place])))
    return [gpus[place] for place in places]


def _partner(index: int, roles: Sequence[str]) -> int | None:
    """The prefill worker that is the partner of a decode worker behind it; None where there is none."""
    earlier = [each for each, role in enumerate(roles[:index]) if role == "prefill"]
    place = roles[:index].count(roles[index])
    return earlier[place] if roles[index] == "decode" and place < len(earlier) else None


def describe_gpus(gpu_of: Mapping[str, int | None]) -> list[str]:
    """A line for each GPU that workers (name -> GPU) compute on: `GPU 1: decode-0`."""
    lines = []
    for gpu in sorted({each for each in gpu_of.values() if each is not None}):
        names = [name for name, each in gpu_of.items() if each == gpu]
        divided = f", which divide its memory into {len(names)} parts" if len(names) > 1 else ""
        lines.append(f"GPU {gpu}: {' and '.join(names)}{divided}")
    return lines
