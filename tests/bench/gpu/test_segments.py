"""Bubbles follow from when segments began and ended; the streams note these moments in order."""

from collections.abc import Callable
from random import Random

import pytest
import torch

from bench.gpu.segments import MarkedCudaStream, MarkedHostStream, Span, marked_stream, parts_of

NAMES = ("write", "propose", "verify", "publish", "extend")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def launches(count: int, lengths: Callable[[str], float], gaps: Callable[[str], float]) -> list[Span]:
    """Segments of launches one behind the other. `gaps`: before a segment."""
    spans, now = [], 0.0
    for name in NAMES * count:
        now += gaps(name)
        spans.append(Span(name, now, now + lengths(name)))
        now = spans[-1].end_s
    return spans


def test_the_bubble_lies_between_extend_and_the_next_propose() -> None:
    lengths = {"write": 0.001, "propose": 0.004, "verify": 0.010, "publish": 0.0005, "extend": 0.003}
    gaps = {"write": 0.002, "propose": 0.0005, "verify": 0.0, "publish": 0.0, "extend": 0.0001}
    parts = parts_of(launches(5, lengths.__getitem__, gaps.__getitem__))
    assert vars(parts) == pytest.approx({"propose": 4.0, "verify": 10.0, "extend": 3.0, "bubble": 3.5, "idle": 2.6})


@pytest.mark.parametrize("seed", range(20))
def test_without_gaps_only_what_is_written_is_in_the_bubble(seed: int) -> None:
    rng = Random(seed)
    lengths = {name: rng.uniform(0.0001, 0.01) for name in NAMES}
    spans = launches(rng.randint(2, 6), lengths.__getitem__, lambda name: 0.0)
    cut = rng.randint(0, 1)  # what is noted may begin within a launch
    parts = parts_of(spans[cut:])
    assert parts.idle == pytest.approx(0.0, abs=1e-9) and parts.bubble == pytest.approx(lengths["write"] * 1e3)


def test_one_launch_tells_nothing_and_neither_does_one_without_extend() -> None:
    spans = launches(2, lambda name: 1.0, lambda name: 0.0)
    with pytest.raises(ValueError, match="got 1 launches that propose, expected at least 2"):
        parts_of(spans[:5])
    with pytest.raises(ValueError, match="a launch has no segment called extend"):
        parts_of([span for span in spans if span.name != "extend"])


class Launch:
    """Segments that note that they have run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.tensors = ()

    def propose(self, used: "Launch") -> None:
        used.ran.append("propose")

    def extend(self, used: "Launch") -> None:
        used.ran.append("extend")


@pytest.mark.parametrize("device", DEVICES)
def test_a_stream_notes_segments_while_it_marks_and_runs_all(device: str) -> None:
    stream, launch = marked_stream(torch.device(device)), Launch()
    assert isinstance(stream, MarkedCudaStream if device == "cuda" else MarkedHostStream)
    try:
        for is_marking in (False, True, True, False):
            stream.is_marking = is_marking
            stream.launch([launch.propose], launch)
            stream.launch([launch.extend], launch)
        spans = stream.spans()
    finally:
        stream.close()
    assert launch.ran == ["propose", "extend"] * 4
    assert [span.name for span in spans] == ["propose", "extend"] * 2
    moments = [moment for span in spans for moment in (span.start_s, span.end_s)]
    assert moments[0] == 0.0 and moments == sorted(moments)
