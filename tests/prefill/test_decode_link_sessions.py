"""What a prefill worker does about its sessions with decode workers."""

from dataclasses import replace

import pytest

from protocol.messages_handoff import TO_PREFILL, CancelJob, JobCredit
from runtime.session import MOST_TICKS, Envelope, not_known, open_envelope
from tests.prefill.driving import HELLO, JOB, LINK_DECODE, LinkBench


@pytest.fixture
def bench() -> LinkBench:
    return LinkBench()


def test_a_greeting_for_the_process_that_had_this_port_before_is_not_heard(bench: LinkBench) -> None:
    assert bench.hear((LINK_DECODE, replace(HELLO, to=4))) == [] and bench.router.sent == []
    assert bench.link._sessions == {}
    mine = replace(HELLO, to=3)
    assert bench.hear((LINK_DECODE, mine)) == [(7, mine)]
    assert bench.hear((LINK_DECODE, replace(HELLO, to=4)), (b"x#9", b"")) == [] and bench.lost == []


def test_what_comes_again_is_dropped_also_from_an_older_session(bench: LinkBench) -> None:
    old = [(LINK_DECODE, bench.seal(LINK_DECODE, message)) for message in (HELLO, JOB)]
    new = [(LINK_DECODE, bench.seal(LINK_DECODE, message)) for message in (HELLO, CancelJob(1))]
    assert bench.take(*old, *old) == [(7, HELLO), (7, JOB)]
    assert bench.take(*new, *old, *new) == [(7, HELLO), (7, CancelJob(1))]
    assert bench.lost == [7] and bench.num_refused == 0, "the second greeting has ended the first session"


def test_a_job_that_another_greeting_overtook_is_dropped(bench: LinkBench) -> None:
    """Its pages are others' by now: nothing may be written for it."""
    hello, job = (bench.seal(LINK_DECODE, message) for message in (HELLO, JOB))
    assert bench.take((LINK_DECODE, hello), (LINK_DECODE, bench.seal(LINK_DECODE, HELLO)), (LINK_DECODE, job)) == [
        (7, HELLO),
        (7, HELLO),
    ]


def test_a_message_that_is_missing_ends_the_session_and_decode_is_told_until_it_greets_anew(bench: LinkBench) -> None:
    bench.hear((LINK_DECODE, HELLO))
    bench.seal(LINK_DECODE, JOB)  # lost
    bench.outbox.decode.append((7, JobCredit(1)))
    assert bench.hear((LINK_DECODE, CancelJob(1))) == []
    assert bench.lost == [7] and bench.outbox.decode == [], "what was to be said in the session is dropped with it"
    bench.take((LINK_DECODE, bench.session.tick()), (LINK_DECODE, bench.seal(LINK_DECODE, JOB)))
    assert bench.router.sent == [(LINK_DECODE, not_known(1))] * 3 and bench.num_refused == 0
    assert bench.hear((LINK_DECODE, HELLO), (LINK_DECODE, JOB)) == [(7, HELLO), (7, JOB)] and bench.lost == [7]


def test_a_first_message_that_confirms_others_opens_no_session(bench: LinkBench) -> None:
    """It harms nobody: other decode workers are heard."""
    assert bench.take((LINK_DECODE, Envelope(1, 1, 1, TO_PREFILL.encode(HELLO)).sealed())) == []
    assert bench.router.sent == [(LINK_DECODE, not_known(1))] and bench.link._sessions == {}
    assert bench.hear((LINK_DECODE, HELLO)) == [(7, HELLO)]


def test_who_has_lost_the_first_message_of_a_session_is_told(bench: LinkBench) -> None:
    bench.seal(LINK_DECODE, HELLO)
    assert bench.take((LINK_DECODE, bench.session.tick())) == []
    assert bench.router.sent == [(LINK_DECODE, not_known(1))] and bench.num_refused == 0


def test_numbers_are_said_until_everything_is_confirmed(bench: LinkBench) -> None:
    bench.hear((LINK_DECODE, HELLO))
    bench.link.tick()
    assert bench.router.sent == [], "the answer comes first"
    bench.outbox.decode.append((7, JobCredit(1)))
    bench.link.flush()
    bench.link.tick()
    assert [open_envelope(raw)[:3] for _, raw in bench.router.sent] == [(1, 1, 1), (1, 1, 1)]
    bench.session.accept(open_envelope(bench.router.sent[0][1]))
    bench.take((LINK_DECODE, bench.session.tick()))
    bench.link.tick()
    assert len(bench.router.sent) == 2


def test_who_does_not_get_what_is_said_to_it_is_given_up(bench: LinkBench) -> None:
    bench.hear((LINK_DECODE, HELLO))
    bench.outbox.decode.append((7, JobCredit(1)))
    bench.link.flush()
    for _ in range(MOST_TICKS):
        assert bench.lost == []
        bench.hear((LINK_DECODE, JOB))
        bench.link.tick()
    assert bench.lost == [7] and bench.router.sent[-1] == (LINK_DECODE, not_known(1))
