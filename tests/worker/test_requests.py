"""What a worker tells the gateway of its choices: their tokens, then that they are preempted."""

import pytest

from protocol.messages_gateway import Assign, FinishReason, Preempted, SamplingParams, Tokens
from protocol.worker_facts import TIME_EDGES_S, Stamp
from scheduler.planning.chunks import ExtendChunk
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from tests.doubles.clock import VirtualClock
from tests.scheduler.building import greedy
from tests.scheduler.remembering import finish, make
from worker.requests import Assigned, Outbox, PhaseTimes, TokenStream

PROMPT = (1, 2, 3, 4, 5)


def serving(num_choices: int = 1, num_replayed: int = 0) -> tuple[Planner, Assigned, TokenStream]:
    """A request whose first outputs are drawn."""
    request = Assigned(Assign("r", 0, PROMPT, greedy(9), num_choices, None, num_replayed=num_replayed))
    planner, executor = make()
    assert planner.admit(request.reqs, 20)
    planner.launch([ExtendChunk(request.prompt, 0, request.prompt_len, request.reqs)])
    planner.join(request.reqs)
    finish(planner, executor)
    stream = TokenStream(planner, dict.fromkeys(request.reqs, request), PhaseTimes(VirtualClock(), "w"), ("", ""))
    return planner, request, stream


def flushed(stream: TokenStream) -> list[object]:
    """The messages that the gateway gets."""
    outbox = Outbox()
    stream.flush(outbox)
    return list(outbox.gateway)


OWNERS = [(1, 1), (2, 1)]  # one list, as in the results of a batch that has not changed


def drawn_later(planner: Planner, req: Req) -> bool:
    """Whether a result for its row would still find it."""
    return any(drawn is req for drawn, _ in planner.results.drawn(OWNERS, [(7,), (7,)]))


def test_the_tokens_of_a_choice_leave_before_it_is_preempted() -> None:
    _, request, stream = serving(2)
    first, second = request.reqs
    assert stream.preempt([first]) == [], "the other one goes on"
    stream.add(second, (8,))
    assert stream.preempt([second]) == [second]
    tokens, *preempted = flushed(stream)
    assert isinstance(tokens, Tokens) and [choice.token_ids for choice in tokens.choices] == [(8,)]
    assert preempted == [Preempted("r", 0, 0), Preempted("r", 0, 1)]
    assert flushed(stream) == []


@pytest.mark.parametrize(("run", "is_cut"), [((7,) * 9, False), ((7,) * 10, True)])
def test_a_run_that_is_longer_than_the_choice_is_stamped(run: tuple[int, ...], is_cut: bool) -> None:
    _, request, stream = serving()
    assert stream.add(request.prompt, run)
    (tokens,) = flushed(stream)
    assert isinstance(tokens, Tokens) and [choice.token_ids for choice in tokens.choices] == [(7,) * 9]
    assert ("run cut" in request.moments) is is_cut


def test_a_choice_that_is_preempted_has_no_memory_and_takes_no_late_result() -> None:
    planner, request, stream = serving()
    owner = request.prompt.held.owner
    assert drawn_later(planner, request.prompt)
    assert stream.preempt([request.prompt]) == [request.prompt]
    assert request.prompt.holding is None and request.prompt.finish is FinishReason.PREEMPTED
    assert not drawn_later(planner, request.prompt)
    assert planner.admit(Assigned(Assign("r", 1, PROMPT, greedy(9), 1, None)).reqs, 20)
    assert planner.results.drawn([owner], [(7,)]) == [], "the row has another owner number"


def test_what_was_cached_is_told_of_the_first_attempt_only() -> None:
    """A later one finds what the first has computed."""
    for num_replayed, expected in ((0, {"r": 4}), (3, {})):
        _, request, stream = serving(num_replayed=num_replayed)
        request.num_cached = 4
        stream.add(request.prompt, (8,))
        (tokens,) = flushed(stream)
        assert isinstance(tokens, Tokens) and tokens.cached == expected


def make_request(timeline: bool = False) -> Assigned:
    return Assigned(Assign("r", 0, (1,), SamplingParams(4), 1, None, timeline=timeline))


def make_phases() -> PhaseTimes:
    return PhaseTimes(VirtualClock(), "worker")


@pytest.mark.parametrize(
    "stamps, expected",
    [
        (
            {"queued at decode": 1.0, "reserved, job sent": 3.0, "first frame landed": 10.0, "KV delivered": 10.5},
            {"queue_time": 2.0, "kv_transfer_time": 0.5},
        ),
        (
            {
                "job received": 0.0,
                "prefill start": 0.25,
                "prompt computed": 1.0,
                "first token": 1.25,
                "KV acknowledged": 1.5,
            },
            {"queue_time": 0.25, "prefill_time": 1.0, "kv_handover_time": 0.5},
        ),
        ({"queued": 0.0, "prefill start": 0.25, "first token": 1.25}, {"queue_time": 0.25, "prefill_time": 1.0}),
    ],
)
def test_phases_of_each_role(stamps: dict[str, float], expected: dict[str, float]) -> None:
    phases = make_phases()
    first, second = make_request(), make_request()
    for name, now in stamps.items():
        phases.stamp(first, name, now)
        phases.stamp(second, name, 100 + now)
    assert {phase: spread.seconds for phase, spread in phases.spreads.items()} == {
        phase: 2 * seconds for phase, seconds in expected.items()
    }
    assert {sum(spread.counts) for spread in phases.spreads.values()} == {2}


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (0.001, 0), (0.0011, 1), (0.25, 7), (60.0, 14), (60.5, 15), (1e6, 15)]
)
def test_a_bucket_holds_its_edge_and_the_last_the_rest(seconds: float, bucket: int) -> None:
    phases, request = make_phases(), make_request()
    phases.stamp(request, "queued", 0.0)
    phases.stamp(request, "prefill start", seconds)
    counts = phases.spreads["queue_time"].counts
    assert len(counts) == len(TIME_EDGES_S) + 1 and [index for index, count in enumerate(counts) if count] == [bucket]


def test_a_phase_that_another_request_began_is_not_counted() -> None:
    phases = make_phases()
    phases.stamp(make_request(), "queued", 0.0)
    phases.stamp(make_request(), "prefill start", 5.0)  # another one: its queue time is not known
    assert phases.spreads == {}


@pytest.mark.parametrize("timeline", [False, True])
def test_a_client_gets_stamps_if_it_asked_for_them(timeline: bool) -> None:
    phases, request = make_phases(), make_request(timeline)
    phases.stamp(request, "queued", 3.0)
    phases.stamp(request, "prefill start")
    expected = [Stamp("queued", 3.0, "worker"), Stamp("prefill start", 0.0, "worker")]
    assert request.stamps == (expected if timeline else [])
