"""The prefill core by itself: messages in, messages and frames out. Its life beside decode is in tests/decode/."""

from dataclasses import replace
from typing import Any

import pytest

from prefill.decode_peers import JOB_TOKENS
from protocol.fingerprint import Fingerprint, pack_weights
from protocol.messages_gateway import Assign, CancelRequest, FirstToken, PeerLost
from protocol.messages_handoff import (
    CancelJob,
    Hello,
    HelloAccepted,
    HelloRefused,
    JobCredit,
    JobFailed,
    JobFinishedEarly,
    JobStopped,
    KvDelivered,
    PrefillJob,
)
from scheduler.execution.streams import Event
from tests.doubles.hash_model import FakeRunner
from tests.prefill.driving import DECODE, PREFILL, PROMPT, Bench
from tests.scheduler.building import greedy


def first(prompt: tuple[int, ...] = PROMPT) -> int:
    return FakeRunner(vocab_size=97).expected_tokens(prompt, 1)[0]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_greeting_is_answered_with_credit() -> None:
    bench = Bench(greeted=False)
    bench.worker.on_peer(7, Hello(DECODE, bench.planner.layout, Fingerprint("print")))
    accepted = HelloAccepted(PREFILL, JOB_TOKENS, bench.planner.layout, offer=b"our answer")
    assert bench.worker.outbox.decode == [(7, accepted)]


def test_another_layout_or_model_is_refused_with_both_values() -> None:
    bench = Bench(greeted=False)
    bench.worker._peers.fingerprint = pack_weights("print", {"w": bytes(8)})
    layout = bench.planner.layout
    bench.worker.on_peer(
        7, Hello(DECODE, replace(layout, groups=(replace(layout.groups[0], head_dim=64),)), Fingerprint("print"))
    )
    bench.worker.on_peer(7, Hello(DECODE, layout, Fingerprint("other")))
    bench.worker.on_peer(7, Hello(DECODE, layout, pack_weights("print", {"w": b"\x01" * 8})))
    bench.job()  # a stranger's: no state is created for it
    assert [message for _, message in bench.worker.outbox.decode] == [
        HelloRefused("head_dim is 4 on prefill-0, 64 on decode-0"),
        HelloRefused("model fingerprint is print on prefill-0, other on decode-0"),
        HelloRefused(
            f"weights: the digest of tensor 'w' is {'00' * 8} on prefill-0, {'01' * 8} on decode-0"
            " (1 of 1 tensors differ)"
        ),
    ]
    assert not bench.worker.turn() and bench.worker.stats().waiting == 0


@pytest.mark.parametrize("overlap", [True, False])
def test_a_job_in_chunks(overlap: bool) -> None:
    bench = Bench(overlap=overlap)
    bench.job(n=2)
    bench.run()
    calls = bench.sender.calls
    assert calls[0] == ("open", 1, 10)
    assert calls[-1] == ("finish", 1, (first(), first()))
    layers = [call[2:] for call in calls if call[0] == "layer"]
    assert sorted(layers) == [(layer, end) for layer in (0, 1) for end in (4, 8, 10)]
    assert [end for layer, end in layers if layer == 1] == [4, 8, 10]
    (token,) = bench.worker.outbox.gateway
    assert isinstance(token, FirstToken)
    assert [(piece.choice, piece.seq, piece.token_ids, piece.finish) for piece in token.choices] == [
        (0, 0, (first(),), ""),
        (1, 0, (first(),), ""),
    ]
    assert bench.sent(JobCredit) == [JobCredit(1)]
    assert bench.planner.num_launches == 3
    assert not bench.at_rest()  # decode has not said that it has everything
    bench.worker.on_peer(7, KvDelivered(1))
    assert bench.sender.calls[-1] == ("delivered", 1)
    assert bench.at_rest()
    bench.worker.on_peer(7, KvDelivered(1))
    bench.worker.on_peer(7, CancelJob(1))
    assert bench.sent(JobCredit) == [JobCredit(1)] and bench.at_rest()


def test_pages_stay_owned_while_the_transport_reads_them() -> None:
    bench = Bench()
    bench.job()
    bench.run()
    (destination,) = bench.sender.open_destinations
    bench.sender.reading.add(destination)
    bench.worker.on_peer(7, KvDelivered(1))
    bench.worker.turn()
    assert bench.planner.kv_manager.pages.counts().quarantined == 3
    bench.sender.reading.clear()
    bench.worker.turn()
    assert bench.at_rest()


@pytest.mark.parametrize("steps", range(8))
def test_a_cancel_at_any_step_gives_everything_back_once(steps: int) -> None:
    bench = Bench()
    bench.job(1)
    bench.job(2, PROMPT[::-1])
    for _ in range(steps):
        if not bench.worker.turn():
            bench.stream.synchronize()
    bench.worker.on_peer(7, CancelJob(1))
    bench.worker.on_peer(7, CancelJob(1))
    bench.run()
    bench.worker.on_peer(7, KvDelivered(2))
    bench.run()
    assert bench.at_rest()
    # Decode itself stops counting a job that it cancels. Credit tells only that a prompt was computed.
    assert bench.sent(JobCredit) in ([JobCredit(2)], [JobCredit(1), JobCredit(2)])
    assert bench.sent(JobFailed) == []
    assert bench.sent(JobStopped) == [JobStopped(1)] * 2  # every cancel is answered
    assert ("finish", 2, (first(PROMPT[::-1]),)) in bench.sender.calls
    assert bench.worker.stats().waiting == bench.worker.stats().running == 0


def test_a_first_token_that_ends_everything() -> None:
    bench = Bench()
    bench.job(1, sampling=greedy(5, eos=(first(),)), n=2)
    bench.job(2, sampling=greedy(1))
    bench.run()
    assert bench.sent(JobFinishedEarly) == [
        JobFinishedEarly(1, (first(), first())),
        JobFinishedEarly(2, (first(),)),
    ]
    finishes = [piece.finish for token in bench.worker.outbox.gateway for piece in getattr(token, "choices", ())]
    assert finishes == ["stop", "stop", "length"]
    assert not [call for call in bench.sender.calls if call[0] == "finish"]
    assert not [call for call in bench.sender.calls if call[1] == 2]  # max_tokens=1: not a byte
    assert ("cancel", 1) in bench.sender.calls
    assert bench.at_rest()


def test_a_repeated_job_is_one_job() -> None:
    bench = Bench()
    bench.worker.on_peer(7, bench.job())
    assert bench.worker.stats().waiting == 1


@pytest.mark.parametrize("end", [KvDelivered, CancelJob])
def test_a_job_that_is_repeated_after_its_end_is_not_run_again(end: type[KvDelivered | CancelJob]) -> None:
    """Its pages in decode are others' by then, and prefill may be told to write there."""
    bench = Bench()
    repeated = bench.job(1)
    bench.run()
    bench.worker.on_peer(7, end(1))
    bench.run()
    calls = list(bench.sender.calls)
    bench.worker.on_peer(7, repeated)
    bench.run()
    assert bench.sender.calls == calls and bench.at_rest()
    bench.job(2)
    bench.run()
    assert bench.sender.calls[-1][:2] == ("finish", 2)


@pytest.mark.parametrize(
    "prompt,says",
    [
        ((), "prompt: got no tokens, expected at least 1"),
        (tuple(range(65)), "the request needs a context of 65 tokens, this worker takes at most 64"),
        (tuple(range(40)), "the request needs 10 KV pages, this worker has 7"),
    ],
)
def test_what_never_fits_fails_at_once(prompt: tuple[int, ...], says: str) -> None:
    bench = Bench(num_pages=8)
    bench.job(1, prompt)
    assert bench.sent(JobFailed) == [JobFailed(1, "bad_request", says)]
    assert bench.at_rest()


@pytest.mark.parametrize("steps", range(6))
def test_a_lost_decode_worker_takes_its_jobs_along(steps: int) -> None:
    bench = Bench()
    bench.job(1)
    bench.job(2)
    for _ in range(steps):
        if not bench.worker.turn():
            bench.stream.synchronize()
    bench.worker.on_gateway(PeerLost("decode-0", 7))
    bench.worker.on_peer(7, PrefillJob(Assign("r3", 0, PROMPT, greedy(5), 1, None), 3))  # it is a stranger now
    bench.run()
    assert ("drop", 7) in bench.sender.calls and bench.at_rest()
    assert bench.worker.stats().waiting == bench.worker.stats().running == 0


def test_what_does_not_concern_it_is_ignored(bench: Bench) -> None:
    bench.worker.on_gateway(CancelRequest("r1", 0))
    bench.worker.on_peer(7, CancelJob(99))
    bench.worker.on_peer(7, KvDelivered(99))
    bench.job()
    bench.worker.on_peer(8, CancelJob(1))  # another decode worker's reservation 1
    assert bench.worker.stats().waiting == 1
    bench.worker.on_peer(7, KvDelivered(1))  # before anything was sent
    bench.run()
    assert bench.sender.calls[-1][0] == "finish"


@pytest.mark.parametrize("writes_on_device", [True, False])
def test_kv_that_is_written_on_the_device_is_not_staged_to_the_host(writes_on_device: bool, bench: Bench) -> None:
    bench.sender.writes_on_device = writes_on_device
    bench.worker.on_peer(7, PrefillJob(Assign("r1", 0, PROMPT, greedy(5), 1, None), 1))
    bench.worker.turn()
    (launch,) = bench.planner.in_flight
    to_host = [chunk.to_host for chunk in launch.chunks]
    assert to_host == [not writes_on_device]
    bench.run()


def test_a_worker_is_busy_while_a_device_moves_its_kv(bench: Bench) -> None:
    assert not bench.worker.busy
    bench.sender.is_moving = True
    assert bench.worker.busy


def test_a_layer_leaves_while_the_next_one_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, left = Bench(chunk_size=16), []
    written = bench.stream.mark

    def mark() -> Event:  # the loop turns whenever a layer wakes it
        bench.worker.turn()
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
    bench.worker.turn()
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
