"""When a worker is at fault and not a request: the table, and the overlap loop that keeps it."""

from collections.abc import Sequence

import pytest

from model.inputs import ModelInput
from scheduler.planning.overlap_loop import LaunchFailures
from tests.decode.driving import VOCAB, greedy, make_cluster, prompt_of
from tests.doubles.hash_model import FakeRunner

A, B, C = ("a", 0), ("b", 0), ("c", 0)
A_AGAIN = ("a", 1)
OK: tuple[tuple[str, int], ...] = ()  # a launch that succeeds


@pytest.mark.parametrize(
    ("launches", "is_broken"),
    [
        ([[A]], False),
        ([[A], [B]], False),
        ([[A], [B], [C]], True),
        ([[A], [B], OK, [C]], False),  # a success: the worker can compute
        ([[A], [A_AGAIN], [B]], True),
        ([[A], [A_AGAIN], [("a", 2)], [("a", 3)]], False),  # one request explains it
        ([[A, B], [A_AGAIN, C], [("a", 2)]], False),
        ([[A, B], [A_AGAIN, C], [("c", 1)]], True),
        ([[A], [A], [B], [B]], False),  # the second of each was in flight when the first failed
        ([[A, B], [B], [C], [("d", 0)]], True),
        ([[A], [B], [A_AGAIN]], True),
    ],
)
def test_the_table(launches: Sequence[Sequence[tuple[str, int]]], is_broken: bool) -> None:
    row = LaunchFailures()
    for attempts in launches:
        row = row.failed(attempts) if attempts else LaunchFailures()
    assert row.is_broken == is_broken


class Switch:
    """Raises in every forward while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.count = 0

    def __call__(self, inp: ModelInput) -> None:
        if self.on:
            self.count += 1
            raise RuntimeError("broken kernel")


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_a_worker_whose_every_launch_fails_is_broken_and_one_that_recovers_is_not(topology: str, overlap: bool) -> None:
    switch = Switch()
    runner = FakeRunner(vocab_size=VOCAB, context_length=256, before_forward=switch)
    cluster = make_cluster(topology, runner, overlap=overlap)
    for name, is_on in (("a", True), ("b", True), ("good", False), ("c", True), ("d", True)):
        switch.on = is_on
        cluster.assign(name, prompt_of(name, 21), greedy(3))
        cluster.run()
        assert (name in cluster.failures) == is_on
        assert not any(worker.loop.broken for worker in cluster.workers), name
    assert {failure.code for failure in cluster.failures.values()} == {"launch_failed"}
    cluster.assign("e", prompt_of("e", 21), greedy(3))
    cluster.run()
    [reason] = [worker.loop.broken for worker in cluster.workers if worker.loop.broken]
    assert reason == "3 launches in a row have failed without a request in common: RuntimeError: broken kernel"
    assert switch.count >= 5
    cluster.close()
