"""A run over time: what plots of it show. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.figures.distribution import percentile
from loadtest.figures.record import Record

MOST_SLICES = 120


@dataclass(frozen=True)
class Series:
    """Slices of equal length: `at_s` are their middles. NaN where nothing happened."""

    at_s: list[float]
    tokens_per_s: list[float]
    ttft_p50_ms: list[float]
    ttft_p99_ms: list[float]
    itl_p50_ms: list[float]
    itl_p99_ms: list[float]


def series_of(records: Sequence[Record], end_s: float) -> Series:
    """A slice a second, fewer for a long run. A value belongs to the slice in which its token came."""
    num_slices = max(1, min(MOST_SLICES, int(end_s)))
    width_s = max(end_s, 1e-9) / num_slices
    begun = [record for record in records if record.arrivals]

    firsts = np.array([record.arrivals[0] for record in begun])
    ttfts = np.array([(record.ttft_s or 0.0) * 1e3 for record in begun])
    arrivals, counts, later, gaps = _events(begun)
    tokens = np.bincount(_slice(arrivals, width_s, num_slices), weights=counts, minlength=num_slices) / width_s

    ttft = _shares(firsts, ttfts, width_s, num_slices)
    itl = _shares(later, gaps, width_s, num_slices)
    at_s = [(number + 0.5) * width_s for number in range(num_slices)]
    return Series(at_s, tokens.tolist(), *ttft, *itl)


def _events(records: Sequence[Record]) -> "tuple[np.ndarray[Any, Any], ...]":
    """When events came and how many tokens they had; and, of all but the first ones, ms per token."""
    empty = np.empty(0)
    arrivals, counts, later, gaps = [empty], [empty], [empty], [empty]
    for record in records:
        at, of_event = np.asarray(record.arrivals), np.maximum(np.asarray(record.counts, int), 1)
        arrivals.append(at)
        counts.append(of_event)
        later.append(at[1:])
        gaps.append(np.diff(at) / of_event[1:] * 1e3)
    return tuple(map(np.concatenate, (arrivals, counts, later, gaps)))


def _slice(at_s: "np.ndarray[Any, Any]", width_s: float, num_slices: int) -> "np.ndarray[Any, Any]":
    places: np.ndarray[Any, Any] = np.clip((at_s / width_s).astype(int), 0, num_slices - 1)
    return places


def _shares(
    at_s: "np.ndarray[Any, Any]", values: "np.ndarray[Any, Any]", width_s: float, num_slices: int
) -> tuple[list[float], list[float]]:
    """p50 and p99 of the values of each slice; p99 is their maximum if they are few."""
    places = _slice(at_s, width_s, num_slices)
    slices = [values[places == number].tolist() for number in range(num_slices)]
    p50, p99 = ([percentile(times, share) for times in slices] for share in (0.5, 0.99))
    return p50, p99
