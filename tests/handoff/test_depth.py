"""How soon launches follow one another: two in flight with overlap, and KV that came is decoded in the same step."""

from typing import Any

import pytest

from scheduler.execution.batches import ScheduleBatch
from scheduler.execution.streams import InlineStream, Stream
from scheduler.planning.launched import Launched
from tests.cluster import Worker
from tests.decode.driving import Phase, drive_to, greedy, make_cluster, prompt_of
from tests.scheduler.building import ManualStream


class Stage:
    """A cluster whose forwards run only when a test says so. `streams` are those of its workers, in their order."""

    def __init__(self, topology: str, overlap: bool) -> None:
        self.streams: list[ManualStream] = []
        self.cluster = make_cluster(topology, overlap=overlap, streams=self._open)

    def _open(self) -> tuple[Stream, Stream]:
        self.streams.append(ManualStream())
        return self.streams[-1], InlineStream()

    def deepest(self, worker: Worker) -> int:
        """How many launches it comes to have in flight."""
        depths = []
        for _ in range(8):
            self.cluster.turn()
            depths.append(len(worker.planner.in_flight))
        return max(depths)


@pytest.mark.parametrize("overlap, depth", [(True, 2), (False, 1)])
def test_each_role_has_as_many_launches_in_flight_as_it_may(overlap: bool, depth: int) -> None:
    split = Stage("1P1D", overlap)
    split.cluster.assign("r", prompt_of("r", 60), greedy(8))
    [prefill], [decode] = split.cluster.prefills.values(), split.cluster.decodes.values()
    assert split.deepest(prefill) == depth

    def is_decoding() -> bool:
        split.streams[0].synchronize()
        return bool(decode.planner.in_flight)

    split.cluster.run(is_decoding)
    assert split.deepest(decode) == depth
    split.cluster.close()

    unified = Stage("1U", overlap)
    unified.cluster.assign("r", prompt_of("r", 60), greedy(8))
    assert unified.deepest(unified.cluster.unifieds[0]) == depth
    unified.cluster.close()


@pytest.mark.parametrize("overlap", [True, False])
def test_a_prebuilt_batch_is_in_the_launch_of_the_step_in_which_its_kv_was_there(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(overlap=overlap, streams=lambda: (InlineStream(), InlineStream()))
    [decode] = cluster.decodes.values()
    launch, decoded = decode.planner.launch, [""]

    def note(**arguments: Any) -> Launched:
        launched = launch(**arguments)
        decoded[:] = [req.request_id for req in launched.reqs]
        return launched

    monkeypatch.setattr(decode.planner, "launch", note)
    cluster.assign("company", prompt_of("company", 20), greedy(100))
    drive_to(cluster, "company", Phase.RUNNING)
    assert decoded == ["company"]
    cluster.assign("r", prompt_of("r", 20), greedy(8))
    drive_to(cluster, "r", Phase.RUNNING)
    assert decoded == ["company", "r"]
    cluster.close()


def test_a_cluster_checks_what_debug_mode_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[ScheduleBatch] = []
    monkeypatch.setattr(ScheduleBatch, "check_mirrors", lambda batch: checked.append(batch))
    cluster = make_cluster("1P1D")
    cluster.assign("r", prompt_of("r", 20), greedy(8))
    cluster.run()
    assert checked
    cluster.close()
