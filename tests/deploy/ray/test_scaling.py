"""How many workers a load needs, and the figures that say so."""

from types import SimpleNamespace
from typing import Any

import pytest

from deploy.ray.scaling import WINDOW_S, ByLoad, Latencies, figures_of, wanted

NONE: dict[str, list[float]] = {"kv": [], "queued_tokens": [], "ttft_ms": [], "itl_ms": []}
AIMS: dict[str, float | None] = {"kv": 0.8, "queued_tokens": 1000, "ttft_ms": 500, "itl_ms": 50}


@pytest.mark.parametrize(
    ("told", "current", "expected"),
    [
        ({}, 3, 3),  # nobody says anything
        ({"kv": [0.0, 0.0]}, 2, 1),
        ({"kv": [0.8]}, 1, 1),
        ({"kv": [0.81]}, 1, 2),
        ({"kv": [0.6, 0.6]}, 2, 2),
        ({"kv": [0.3, 0.3, 0.2]}, 3, 1),
        ({"kv": [0.9, 0.9]}, 3, 3),  # the third is just starting: it says nothing yet
        ({"kv": [0.79]}, 3, 3),  # two say nothing: they may be busy
        ({"kv": [0.9]}, 1, 2),
        ({"queued_tokens": [0, 0]}, 2, 1),
        ({"queued_tokens": [3500.0]}, 1, 4),
        ({"kv": [0.1], "queued_tokens": [2500.0]}, 1, 3),  # the figure that needs most decides
        ({"ttft_ms": [501.0, 501.0]}, 2, 3),
        ({"ttft_ms": [400.0]}, 2, 2),  # near its aim: the number stays
        ({"ttft_ms": [100.0, 100.0], "kv": [0.1, 0.1]}, 2, 1),
        ({"ttft_ms": [340.0] * 4, "kv": [0.1] * 4}, 4, 3),  # one after the other: what fewer would do is not known
        ({"ttft_ms": [360.0] * 4, "kv": [0.1] * 4}, 4, 4),
        ({"itl_ms": [51.0], "kv": [0.1]}, 1, 2),
        ({"itl_ms": [45.0, 45.0], "kv": [0.1, 0.1]}, 2, 2),
    ],
)
def test_the_count_for_which_each_figure_is_at_its_aim(
    told: dict[str, list[float]], current: int, expected: int
) -> None:
    assert wanted({**NONE, **told}, current, AIMS) == expected


def test_more_load_never_needs_fewer() -> None:
    counts = [wanted({**NONE, "kv": [share / 100] * 3}, 3, AIMS) for share in range(101)]
    assert counts == sorted(counts) and set(counts) == {1, 2, 3, 4}


@pytest.mark.parametrize("aim", ["kv", "queued_tokens", "ttft_ms", "itl_ms"])
def test_a_figure_without_an_aim_does_not_count(aim: str) -> None:
    told = {**NONE, aim: [1e6]}
    assert wanted(told, 2, AIMS) > 2 and wanted(told, 2, {**AIMS, aim: None}) == 2


def test_serve_calls_it_with_what_replicas_have_told() -> None:
    policy = ByLoad(kv=0.5, ttft_ms=200)
    context = SimpleNamespace(
        aggregated_metrics={"kv": {"a": 0.5, "b": 0.4}, "ttft_ms": {"a": 150.0}}, target_num_replicas=1
    )
    assert policy(context) == (2, {})
    assert policy(SimpleNamespace(aggregated_metrics=None, target_num_replicas=2)) == (2, {})


@pytest.mark.parametrize("value", [0, -1, True, "500", 1e9])
def test_an_aim_is_a_number_above_0(value: Any) -> None:
    with pytest.raises(ValueError, match=r"policy_kwargs: ttft_ms is .*, expected a number above 0, or null"):
        ByLoad(ttft_ms=value)


def row(name: str, free: int, cached: int, queued: int) -> dict[str, Any]:
    pages = {"total": 100, "free": free, "cached": cached}
    return {"id": name, "kv_pages": pages, "queued_prompt_tokens": queued}


def test_the_figures_of_a_worker_are_those_of_its_ranks() -> None:
    rows = [row("decode-a.0", 60, 20, 5), row("decode-a.1", 100, 0, 7), row("decode-ab", 0, 0, 9), row("p", 0, 50, 3)]
    assert figures_of(rows, {"itl_ms": 9.0}, "decode-a") == pytest.approx(
        {"kv": 0.2, "queued_tokens": 12, "itl_ms": 9.0}
    )
    assert figures_of(rows, {}, "p") == {"kv": 0.5, "queued_tokens": 3.0}
    assert figures_of(rows, {"itl_ms": 9.0}, "gone") == {}


def page(ttft: list[int], itl: list[int] | None = None) -> str:
    """/metrics with histograms of these cumulative counts, for 0.1 s, 1 s, and more."""
    lines = ["# TYPE baton_time_to_first_token_seconds histogram"]
    for name, counts in (("baton_time_to_first_token", ttft), ("baton_inter_token_latency", itl or [0, 0, 0])):
        for bound, count in zip(("0.1", "1.0", "+Inf"), counts, strict=True):
            lines.append(f'{name}_seconds_bucket{{le="{bound}",model_name="m"}} {count}.0')
    return "\n".join([*lines, 'baton_other_seconds_bucket{le="+Inf"} 7'])


def test_latencies_are_those_of_the_window() -> None:
    latencies = Latencies()
    assert latencies.take(page([10, 10, 10]), 0.0) == {}, "nothing has come since the first page"
    assert latencies.take(page([19, 20, 20]), 10.0) == {"ttft_ms": 100.0}
    assert latencies.take(page([19, 30, 30], [0, 0, 4]), 20.0) == {"ttft_ms": 1000.0, "itl_ms": 1000.0}
    assert latencies.take(page([19, 30, 30], [0, 0, 4]), 20.0 + WINDOW_S) == {}, "nothing has come in the window"


def test_a_gateway_that_was_started_anew_counts_anew() -> None:
    latencies = Latencies()
    latencies.take(page([0, 50, 50]), 0.0)
    assert latencies.take(page([1, 1, 1]), 1.0) == {}
    assert latencies.take(page([10, 10, 10]), 2.0) == {"ttft_ms": 100.0}
