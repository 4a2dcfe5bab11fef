"""KV between a device and its twin in host memory, on a stream of its own: who waits for it, and who does not."""

from typing import Any

import pytest

from scheduler.execution.streams import Event
from tests.cluster import Cluster
from tests.decode.driving import greedy
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import ManualStream

PROMPT = list(range(1, 40))


def cluster_of(runner: FakeRunner) -> Cluster:
    return Cluster(runner, "1P1D", page_size=4, chunk_size=64, num_pages=600, mirrored=True)


def steps(cluster: Cluster, count: int = 300) -> None:
    for _ in range(count):
        cluster.turn()


def held(cluster: Cluster, instance: int) -> ManualStream:
    """Holds back what is staged by one worker from now on."""
    worker = cluster.prefills.get(instance) or cluster.decodes[instance]
    stream = ManualStream()
    executor = cluster.executor(worker)
    executor.device.staging.close()
    executor.device.staging = stream
    return stream


@pytest.mark.parametrize("choices", [1, 3])
def test_a_request_is_decoded_when_its_kv_is_on_the_device_and_others_go_on_meanwhile(choices: int) -> None:
    runner = FakeRunner(context_length=512)
    cluster = cluster_of(runner)
    cluster.assign("running", [7, 8, 9], greedy(400))
    cluster.run(lambda: len(cluster.answers["running", 0].ids) > 3)
    stream = held(cluster, 200)
    cluster.assign("staged", PROMPT, greedy(12), n=choices)
    cluster.run(lambda: bool(stream.queue))
    before = len(cluster.answers["running", 0].ids)
    cluster.run(lambda: len(cluster.answers["running", 0].ids) > before + 20)
    assert [len(cluster.answers["staged", choice].ids) for choice in range(choices)] == [1] * choices  # of prefill
    stream.record().synchronize()
    cluster.run()
    cluster.check()
    for choice in range(choices):
        assert cluster.answers["staged", choice].ids == runner.expected_tokens(PROMPT, 12)
    assert cluster.answers["running", 0].ids == runner.expected_tokens([7, 8, 9], 400)
    cluster.close()


def test_pages_of_a_request_that_has_left_are_not_reused_while_they_are_staged() -> None:
    runner = FakeRunner(context_length=512)
    cluster = cluster_of(runner)
    stream = held(cluster, 200)
    decode = cluster.decodes[200]
    planner = decode.planner
    free = planner.kv_manager.pages.num_free
    cluster.assign("left", PROMPT, greedy(12), n=2)
    cluster.run(lambda: bool(stream.queue))
    cluster.executor(decode).device.forward.record().synchronize()
    steps(cluster)
    assert not planner.in_flight and cluster.decodes[200].busy  # so that its loop looks again soon
    cluster.cancel("left")
    steps(cluster)
    assert planner.kv_manager.pages.num_free < free and not cluster.decodes[200].stats().running
    stream.record().synchronize()
    steps(cluster)
    assert planner.kv_manager.pages.num_free == free
    cluster.check()
    cluster.close()


def test_a_choice_that_leaves_while_its_kv_is_staged_takes_nothing_from_the_others() -> None:
    runner = FakeRunner(context_length=512)
    cluster = cluster_of(runner)
    stream = held(cluster, 200)
    cluster.assign("r", PROMPT, greedy(12), n=3)
    cluster.run(lambda: bool(stream.queue))
    cluster.cancel("r", 0)
    steps(cluster)
    stream.record().synchronize()
    cluster.run()
    cluster.check()
    for choice in (1, 2):
        assert cluster.answers["r", choice].ids == runner.expected_tokens(PROMPT, 12)
    cluster.close()


def test_prefill_sends_a_layer_when_it_is_in_host_memory() -> None:
    runner = FakeRunner(context_length=512)
    cluster = cluster_of(runner)
    stream = held(cluster, 100)
    cluster.assign("r", PROMPT, greedy(12))
    cluster.run(lambda: bool(stream.queue))
    steps(cluster)
    assert cluster.prefills[100].planner.in_flight and cluster.prefills[100].stats().counters.get("frames", 0) == 0
    stream.record().synchronize()
    cluster.run()
    cluster.check()
    assert cluster.answers["r", 0].ids == runner.expected_tokens(PROMPT, 12)
    cluster.close()


def test_each_layer_is_staged_behind_the_forward_that_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU a layer is written when the forward says so; on a GPU only this order keeps old KV out of the twin."""
    runner = FakeRunner(context_length=512)
    cluster = cluster_of(runner)
    stream, executor = held(cluster, 100), cluster.executor(cluster.prefills[100])
    calls: list[tuple[str, Any]] = []
    mark, launch = executor.device.forward.mark, stream.launch

    def marked() -> Event:
        event = mark()
        calls.append(("written", event))
        return event

    def launched(*arguments: Any) -> None:
        calls.append(("staged", None))
        launch(*arguments)

    monkeypatch.setattr(executor.device.forward, "mark", marked)
    monkeypatch.setattr(stream, "wait", lambda event: calls.append(("waits", event)))
    monkeypatch.setattr(stream, "launch", launched)
    cluster.assign("r", PROMPT, greedy(12))
    cluster.run(lambda: bool(executor.launches) and bool(executor.launches[0].layers))
    executor.device.forward.record().synchronize()
    num_layers = executor.kv.layout.num_layers
    assert [name for name, _ in calls] == ["written", "waits", "staged"] * num_layers
    assert all(calls[at][1] is calls[at + 1][1] for at in range(0, len(calls), 3))

    # The forward stream uses the page numbers: their memory is not given away before it is done.
    launch_of = executor.launches[0]
    assert any(tensor is launch_of.written_pages_N for tensor in launch_of.tensors)
    stream.record().synchronize()
    cluster.run()
    cluster.check()
    cluster.close()
