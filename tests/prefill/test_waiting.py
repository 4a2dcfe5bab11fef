"""What a prefill worker spends on jobs that wait."""

from protocol.messages_handoff import CancelJob
from tests.counting import instructions
from tests.prefill.test_worker import Bench


def test_a_turn_and_a_cancel_cost_the_same_however_many_jobs_wait() -> None:
    turns, cancels, cancel = [], [], CancelJob(15)
    for num_jobs in (20, 200):
        bench = Bench()
        for reservation in range(1, 1 + num_jobs):
            bench.job(reservation)
        for _ in range(4):
            bench.worker.step()  # until two launches are in flight
        assert bench.worker.stats().waiting == num_jobs - 8  # as many as there are rows do not wait
        turns.append(instructions(bench.worker.step))
        cancels.append(instructions(lambda worker=bench.worker: worker.on_peer(7, cancel)))  # type: ignore[misc]
    assert turns[0] == turns[1] > 0
    assert cancels[0] == cancels[1] > 0
