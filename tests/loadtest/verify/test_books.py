"""Whether a server is at rest, by its gauges."""

import pytest

from loadtest.verify.books import at_rest, leaks

PAGE = {
    "vllm:num_requests_running{engine=0}": 0.0,
    "vllm:kv_cache_usage_perc{engine=0}": 0.0,
    'baton_kv_pages{state="owned",worker="u"}': 0.0,
    'baton_kv_pages{state="cached",worker="u"}': 9.0,
    "baton_requests_in_flight": 0.0,
    "sglang:num_running_reqs": 0.0,
    "process_open_fds": 27.0,
}


def test_gauges_that_are_0_at_rest() -> None:
    gauges = at_rest(PAGE)
    assert len(gauges) == 5 and not any(gauges.values()) and at_rest(None) == {}


@pytest.mark.parametrize("name", at_rest(PAGE))
def test_what_stands_still_above_0_has_leaked(name: str) -> None:
    before, after = at_rest(PAGE), at_rest({**PAGE, name: 2.0})
    assert leaks(before, [after] * 3) == [f"{name} is 2, and was 0 before"]
    assert leaks(before, [before] * 3) == []
    assert leaks(before, [at_rest({**PAGE, name: value}) for value in (3.0, 2.0)]) == []  # somebody else asks
    assert leaks(after, [after] * 3) == []  # it was not at rest before
