"""Whether a server is at rest again, by the gauges of its /metrics. Pure."""

from collections.abc import Mapping, Sequence

Gauges = Mapping[str, float]
# Words of names of gauges that are 0 when nobody asks: of Baton, vLLM, SGLang and Dynamo.
_AT_REST = (
    "requests_in_flight", "running_requests", "waiting_requests", "num_requests_running", "num_requests_waiting",
    "num_running_reqs", "num_queue_reqs", "inflight_requests", "queued_requests", "kv_cache_usage_perc", "token_usage",
)  # fmt: skip
_PAGES = "baton_kv_pages"
_HELD = ('state="owned"', 'state="reserved"', 'state="quarantined"')


def at_rest(samples: Gauges | None) -> Gauges:
    """Those samples of a page that are 0 when nobody asks."""
    return {name: value for name, value in (samples or {}).items() if _rests(name)}


def leaks(before: Gauges, looks: Sequence[Gauges]) -> list[str]:
    """What a run has left behind: gauges that were 0 before, and have stood still above that in all later looks. Where
    they move, somebody else asks, and nothing is known."""
    if any(before.values()) or len(looks) < 2:
        return []
    return [
        f"{name} is {value:g}, and was 0 before"
        for name, value in looks[-1].items()
        if value > before.get(name, 0.0) and all(look.get(name) == value for look in looks)
    ]


def _rests(sample: str) -> bool:
    name, _, labels = sample.partition("{")
    if name == _PAGES:
        return any(state in labels for state in _HELD)
    return name.endswith(_AT_REST)
