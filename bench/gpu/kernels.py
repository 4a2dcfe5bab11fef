"""Reads a trace of decode steps: their kernels by time and kind, and when the device was idle. Pure.

A trace is what torch's profiler exports for Chrome. A period runs from the start of one kernel to its start in the next
step. The device is busy while any of its streams is, so overlapping kernels count once in the busy time.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

ON_THE_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of a trace
NAME_CHARS: Final = 72
KINDS: Final = (  # the first whose pattern is found in a kernel's name
    ("attention", r"attend|_number_splits|_combine_splits|flash|fmha|attention"),
    ("sampling", r"argmax|softmax|scan|cumsum|searchsorted|radix|topk|sampl|_draw|multinomial"),
    ("products", r"gemm|gemv|nvjet|cutlass|xmma|splitk|cublas|_experts"),
    ("norms and passes", r"norm|_place|_gated|silu|rsqrt|rope|rotat|sin_kernel|cos_kernel|add<c10::bfloat16>"),
    ("copies and bookkeeping", r"mem(cpy|set)|copy|fill|index|gather|scatter|\bcat|arange|where|long|bool|embedding"),
)
OTHER: Final = "other"


@dataclass(frozen=True)
class Event:
    """One run of a kernel, or one copy, on the device's clock."""

    name: str
    start_us: float
    us: float

    @property
    def end_us(self) -> float:
        """When it was over."""
        return self.start_us + self.us


@dataclass(frozen=True)
class Period:
    """One step. `before` is the kernel that ended the longest time in which no kernel ran."""

    span_us: float
    busy_us: float
    gap_us: float
    before: str

    @property
    def idle_us(self) -> float:
        """The time in which no kernel ran."""
        return self.span_us - self.busy_us


@dataclass(frozen=True)
class Total:
    """The events of one name or one kind."""

    name: str
    calls: int
    us: float


def device_events(trace: Mapping[str, Any], categories: Iterable[str] = ON_THE_DEVICE) -> list[Event]:
    """The events of these categories, by their start."""
    wanted = set(categories)
    on_device = [
        Event(str(event["name"]), float(event["ts"]), float(event["dur"]))
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") in wanted
    ]
    return sorted(on_device, key=lambda event: event.start_us)


def busy_us(events: Iterable[Event]) -> float:
    """The time in which at least one of the events ran."""
    return sum(end - start for start, end, _ in _busy(sorted(events, key=lambda event: event.start_us)))


def _busy(events: Iterable[Event]) -> Iterator[tuple[float, float, str]]:
    """The times without a pause: start, end and the name of the first event. `events` are in order of their start."""
    start, end, first = 0.0, float("-inf"), ""
    for event in events:
        if event.start_us > end:
            if first:
                yield start, end, first
            start, end, first = event.start_us, event.end_us, event.name
        end = max(end, event.end_us)
    if first:
        yield start, end, first


def by_name(events: Iterable[Event]) -> list[Total]:
    """The events of each name, the greatest time first."""
    return _totals((event.name, event.us) for event in events)


def by_kind(events: Iterable[Event]) -> list[Total]:
    """The events of each kind, the greatest time first."""
    return _totals((kind_of(event.name), event.us) for event in events)


def _totals(named: Iterable[tuple[str, float]]) -> list[Total]:
    times_of: defaultdict[str, list[float]] = defaultdict(list)
    for name, us in named:
        times_of[name].append(us)
    totals = [Total(name, len(times), sum(times)) for name, times in times_of.items()]
    return sorted(totals, key=lambda total: total.us, reverse=True)


def periods(events: Sequence[Event], num_steps: int) -> list[Period]:
    """The periods of a trace of `num_steps` whole steps, one less than there are steps.

    They begin at the kernel that takes the longest of those that ran `num_steps` times. Without such a kernel there are
    none.
    """
    marker = next((total.name for total in by_name(events) if total.calls == num_steps), "")
    starts = [event.start_us for event in events if event.name == marker]
    return [_period(events, start, end, marker) for start, end in pairwise(starts)]


def _period(events: Iterable[Event], start_us: float, end_us: float, marker: str) -> Period:
    """What ran in [start, end), a part of an event included. The marker runs at both ends."""
    inside = []
    for event in events:
        begin, end = max(start_us, event.start_us), min(end_us, event.end_us)
        if begin < end:
            inside.append(Event(event.name, begin, end - begin))

    times = [*_busy(sorted(inside, key=lambda event: event.start_us)), (end_us, end_us, marker)]
    gap_us, before = max((later[0] - earlier[1], later[2]) for earlier, later in pairwise(times))
    return Period(end_us - start_us, sum(end - start for start, end, _ in times), gap_us, before if gap_us else "")


def kind_of(name: str) -> str:
    """What a kernel of this name does."""
    lower = _without_parameters(name).lower()
    return next((kind for kind, pattern in KINDS if re.search(pattern, lower)), OTHER)


def short(name: str) -> str:
    """A kernel's name without namespaces, parameters and return type, at most NAME_CHARS long."""
    if name.startswith("void "):
        name = re.sub(r"\b(?:\w+::)+(?=\w)", "", _without_parameters(name.removeprefix("void ")))
    return name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 3]}..."


def _without_parameters(name: str) -> str:
    """The name up to the first bracket that is in no template, without anonymous namespaces."""
    name = name.replace("(anonymous namespace)::", "")
    depth: Counter[str] = Counter()
    for index, char in enumerate(name):
        if char == "(" and depth["<"] <= depth[">"] and index:
            return name[:index]
        depth[char] += 1
    return name
