"""What is timed, how often and in which order; and how a run that waits for the device is noticed."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.device_seconds import WARM_UP
from bench.gpu import timing
from bench.gpu.timing import Limits, busy_products, launched, seconds_in_turn, why_it_waits

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
seconds = st.floats(1e-6, 1.0)


def test_sides_take_turns() -> None:
    order: list[str] = []
    seconds_of = seconds_in_turn({name: partial(order.append, name) for name in "ab"}, 3, 2, CPU)
    assert seconds_of.keys() == set("ab") and "".join(order) == "aaabbbbbbaaaaaabbb"


@given(seconds, seconds)
def test_the_device_is_busy_for_longer_than_the_host_needs(host_s: float, product_s: float) -> None:
    count = busy_products(host_s, product_s)
    assert count * product_s > 1.99 * host_s and (count - 2) * product_s < 2.01 * host_s


class Logged:
    """Stands in for a device: its events, and a matrix that notes its products."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def record(self) -> None:
        self._log.append("event")

    def synchronize(self) -> None:
        self._log.append("wait")

    def elapsed_time(self, _later: "Logged") -> float:
        return 2.5

    def bfloat16(self) -> "Logged":
        return self

    def __matmul__(self, _right: "Logged") -> "Logged":
        self._log.append("product")
        return self


def test_the_device_is_kept_busy_before_the_runs_that_its_events_time(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: Logged(log))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: log.append("wait"))
    monkeypatch.setattr(torch, "randn", lambda *_, **__: Logged(log))
    monkeypatch.setattr(timing, "busy_products", lambda *_: 3)
    took = launched(lambda: log.append("run"), 2, 2, Limits(1e9, 1e9), CUDA)
    assert took.device_s == 0.0025 and took.host_s > 0

    first = log.index("wait") + 1  # behind the warm-up
    assert log[:first].count("run") == WARM_UP + 1
    alone = ["wait", "run", "run", "wait"]
    behind = ["product"] * 3 + ["event", "run", "event", "run", "event", "wait"]
    assert log[first:] == [*alone, *behind] * 2


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", seen.append)
    return seen


def test_a_run_that_waits_is_told_in_torchs_words_and_the_mode_is_put_back(modes: list[str]) -> None:
    def waits() -> None:
        assert modes[-1] == "error"
        raise RuntimeError("called a synchronizing CUDA operation\nand more")

    assert why_it_waits(waits, CUDA) == "called a synchronizing CUDA operation"
    assert why_it_waits(lambda: None, CUDA) == ""
    assert modes == ["error", "default"] * 2


def test_another_error_is_not_taken_for_it(modes: list[str]) -> None:
    def fails() -> None:
        raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        why_it_waits(fails, CUDA)
    assert list(pairwise(modes)) == [("error", "default")]
