"""KV leaves as it is computed, and the time line says what is left to wait for."""

from typing import Any

import pytest

from protocol.messages_gateway import Assign, FirstToken
from protocol.messages_handoff import KvDelivered, PrefillJob
from scheduler.execution.streams import Event
from tests.prefill.driving import PROMPT, Bench
from tests.scheduler.building import greedy


def test_a_layer_leaves_while_the_next_one_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, left = Bench(chunk_size=16), []
    written = bench.stream.mark

    def mark() -> Event:  # the loop turns whenever a layer wakes it
        bench.worker.step()
        left.append([call[2] for call in bench.sender.calls if call[0] == "layer"])
        return written()

    monkeypatch.setattr(bench.stream, "mark", mark)
    bench.job()
    bench.run()
    layers = list(range(bench.planner.layout.num_layers))
    assert left == [layers[:done] for done in layers] and len(layers) > 1
    assert [call[2] for call in bench.sender.calls if call[0] == "layer"] == layers


def test_the_time_line_says_when_the_prompt_was_computed_not_when_that_was_noticed() -> None:
    bench = Bench(chunk_size=16)
    bench.worker.on_peer(7, PrefillJob(Assign("r1", 0, PROMPT, greedy(5), 1, None, timeline=True), 1))
    bench.worker.step()
    bench.clock.advance(1.0)
    launch = bench.executor.launches[0]
    while launch.computed_at is None:
        bench.stream.run_one()
    bench.clock.advance(0.25)
    bench.run()
    [told] = [message for message in bench.worker.outbox.gateway if isinstance(message, FirstToken)]
    moments = {stamp.name: stamp.at for stamp in told.stamps}
    assert moments == {"job received": 0.0, "prefill start": 0.0, "prompt computed": 1.0, "first token": 1.25}
    bench.clock.advance(0.25)
    bench.worker.on_peer(7, KvDelivered(1))
    times = bench.worker.stats().times
    assert (times["prefill_time"].seconds, times["kv_handover_time"].seconds) == (1.25, 0.5)


def test_a_prompt_starts_before_its_launch_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(chunk_size=16)
    launch = bench.planner.launch

    def slow(*args: Any, **kwargs: Any) -> None:  # the device may have computed the prompt when this returns
        launch(*args, **kwargs)
        bench.clock.advance(1.0)

    monkeypatch.setattr(bench.planner, "launch", slow)
    bench.job()
    bench.run()
    assert bench.worker.stats().times["queue_time"].seconds == 0.0
    assert bench.worker.stats().times["prefill_time"].seconds == 1.0
