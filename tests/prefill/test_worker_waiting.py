"""Jobs that wait at a prefill worker: their order, how many there may be, and what they cost."""

import pytest

from protocol.messages_handoff import CancelJob, JobFailed
from tests.prefill.driving import Bench
from tests.scheduler.building import greedy
from worker.policies import DEFAULTS, Policies


def crowded(policies: Policies = DEFAULTS) -> Bench:
    """A worker whose rows are all taken."""
    bench = Bench(chunk_size=64, policies=policies)
    for reservation in range(1, 9):
        bench.job(reservation)
        bench.worker.turn()
    assert bench.worker.stats().waiting == 0
    return bench


def order(bench: Bench) -> list[int]:
    """The reservations of those that wait, in their order, as the first of the line leaves one by one."""
    line, keys = bench.worker.prompts.waiting, list[int]()
    while (job := line.first()) is not None:
        keys.append(job.destination.reservation)
        bench.worker.on_peer(7, CancelJob(job.destination.reservation))
    return keys


def test_jobs_that_are_refused_leave_nothing_behind() -> None:
    bench = crowded(Policies(max_queued_requests=2))
    bench.job(11)
    bench.job(12)
    bench.job(13)
    bench.job(13)  # a repeat gets no second chance
    bench.job(14, resumes=True)
    reason = "the worker's waiting line is full (--max-queued-requests 2)"
    assert bench.sent(JobFailed) == [JobFailed(13, "prefill_queue_full", reason)]
    assert order(bench) == [14, 11, 12]
    for reservation in range(1, 9):
        bench.worker.on_peer(7, CancelJob(reservation))
    bench.run()
    assert bench.at_rest()


@pytest.mark.parametrize("overlap", [True, False])
def test_the_turn_whose_results_make_room_launches_the_job_that_waited_for_it(overlap: bool) -> None:
    """Its first token ends the job before it, which gives its pages back."""
    bench = Bench(num_pages=4, chunk_size=16, overlap=overlap)  # three pages: one prompt of ten tokens
    for reservation in (1, 2):
        bench.job(reservation, sampling=greedy(1))
    assert bench.worker.turn() and bench.worker.stats().waiting == 1
    bench.stream.synchronize()
    assert bench.worker.turn()
    assert (bench.worker.stats().waiting, bench.planner.num_launches) == (0, 2)
    bench.run()
    assert bench.at_rest()
