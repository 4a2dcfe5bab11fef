"""What is measured of a request reaches the metrics."""

from gateway.generation.tallies import PREFIX, Metrics
from gateway.generation.times import Times
from gateway.words.prompt import Prompt
from protocol.messages_gateway import SamplingParams
from tests.doubles.clock import VirtualClock


def test_prompts_that_have_reached_their_workers_are_counted_with_the_time_that_took() -> None:
    clock, metrics = VirtualClock(), Metrics("story")
    times = Times(clock, metrics, received_at=clock.now())
    clock.advance(0.25)
    times.assigned([Prompt((1,) * length, SamplingParams(max_tokens=1), num_choices=1) for length in (3, 5)])

    def told(name: str) -> list[float | None]:
        sample = metrics.registry.get_sample_value
        return [sample(f"{PREFIX}{name}_{part}") for part in ("count", "sum")]

    assert metrics.num_prompt_tokens == 8
    assert told("request_prompt_tokens") == [2, 8] and told("gateway_request_seconds") == [1, 0.25]
