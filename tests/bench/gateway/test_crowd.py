"""The longest gap of streams: which pauses count."""

import json
import math
from pathlib import Path

import pytest

from bench.gateway.crowd import Crowd, _long_context, crowd_json, longest_gap_s
from bench.gateway.lone_gateway import Streamed

STREAMS = [Streamed(0.0, [1.0, 1.5, 4.0, 4.1]), Streamed(0.0, [2.0, 3.0, 3.2])]


@pytest.mark.parametrize(
    ("begun", "ended", "longest"),
    [(0.0, 9.0, 2.5), (1.0, 1.4, 0.5), (1.6, 1.7, 2.5), (4.05, 9.0, 0.1), (1.0, 2.0, 2.5)],
)
def test_pauses_that_overlap_the_time_count(begun: float, ended: float, longest: float) -> None:
    assert longest_gap_s(STREAMS, begun, ended) == pytest.approx(longest)


def test_no_pause_is_no_gap() -> None:
    assert math.isnan(longest_gap_s(STREAMS, 5.0, 6.0)) and math.isnan(longest_gap_s([], 0.0, 1.0))


def test_a_context_as_long_as_the_workers() -> None:
    with _long_context(Path("models/story")) as folder:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert config["max_position_embeddings"] == 1 << 20 and (folder / "tokenizer.json").exists()
    assert not folder.exists()


def test_rows_for_programs() -> None:
    row, empty = crowd_json([Crowd(500, 2, 1.26, 3.0, 4.0, 5.04), Crowd(0, 0, math.nan, 3.0, 4.0, 5.0)])
    assert empty["longest_gap_ms"] is None
    assert row["longest_gap_ms"] == 1.3 and row["beside_bytes"] == 500 and row["peak_memory_mb"] == 5.0
