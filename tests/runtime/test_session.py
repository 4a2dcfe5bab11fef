"""The table of runtime/session.py, row by row."""

import pytest

from protocol.errors import WireError
from runtime.session import ENVELOPE_BYTES, MOST_TICKS, Envelope, Session, SessionLost, not_known, open_envelope


class Link:
    """Two ends; what they seal is lost unless a test gives it to the other."""

    def __init__(self) -> None:
        self.dialler, self.other = Session(3), Session(3)

    def up(self, count: int = 1) -> None:
        """So many messages of the dialler arrive."""
        for _ in range(count):
            assert self.other.accept(open_envelope(self.dialler.seal(b"up")))

    def down(self, count: int = 1) -> None:
        """So many messages of the other end arrive."""
        for _ in range(count):
            assert self.dialler.accept(open_envelope(self.other.seal(b"down")))


def test_an_envelope_arrives_as_it_was_sealed() -> None:
    envelope = Envelope(7, 2**40, 2**33, b"body")
    assert open_envelope(envelope.sealed()) == envelope
    assert len(envelope.sealed()) == ENVELOPE_BYTES + 4
    session = Session(7)
    assert open_envelope(session.seal(b"a")) == (7, 1, 0, b"a")
    assert open_envelope(session.seal(b"b")) == (7, 2, 0, b"b")
    assert open_envelope(session.tick()) == (7, 2, 0, b"")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", f"got 0 bytes, expected at least {ENVELOPE_BYTES}"),
        (b"\x01" * (ENVELOPE_BYTES - 1), f"got {ENVELOPE_BYTES - 1} bytes"),
        (b"\x93" * 50, "got version 147, expected 1"),
    ],
)
def test_what_is_no_envelope_is_refused_by_name(raw: bytes, why: str) -> None:
    with pytest.raises(WireError, match=f"^envelope: {why}"):
        open_envelope(raw)


def test_an_epoch_opens_with_its_first_message() -> None:
    envelopes = [Envelope(1, 1, 0, b"x"), Envelope(1, 2, 0, b"x"), Envelope(1, 1, 0, b""), Envelope(1, 0, 0, b"x")]
    envelopes.append(Envelope(1, 1, 1, b"x"))  # nothing was sent yet that it could confirm
    assert [envelope.opens for envelope in envelopes] == [True, False, False, False, False]


def test_what_arrives_in_order_is_news_and_a_repeat_is_not() -> None:
    session = Session(3)
    envelopes = [Envelope(3, number, 0, b"x") for number in (1, 2, 3)]
    assert [session.accept(each) for each in envelopes] == [True] * 3
    assert [session.accept(each) for each in envelopes] == [False] * 3
    assert session.accept(Envelope(3, 4, 0, b"x"))


def test_a_message_that_is_missing_is_noticed_with_the_next() -> None:
    session = Session(3)
    session.accept(Envelope(3, 1, 0, b"x"))
    with pytest.raises(SessionLost, match="has sent 3 messages, of which 2 arrived and could be read"):
        session.accept(Envelope(3, 3, 0, b"x"))


def test_the_last_message_is_missed_with_the_numbers_alone() -> None:
    link = Link()
    link.up(2)
    assert not link.other.accept(open_envelope(link.dialler.tick()))
    link.dialler.seal(b"lost")
    with pytest.raises(SessionLost, match="has sent 3 messages, of which 2 arrived"):
        link.other.accept(open_envelope(link.dialler.tick()))


def test_numbers_that_come_again_tell_nothing() -> None:
    link = Link()
    link.up()
    numbers = open_envelope(link.dialler.tick())
    link.up()
    assert not link.other.accept(numbers)


def test_an_older_epoch_is_dropped_and_a_later_one_ends_the_session() -> None:
    session = Session(3)
    assert not session.accept(Envelope(2, 9, 9, b"x")) and not session.accept(Envelope(2, 0, 0, b"x"))
    with pytest.raises(SessionLost, match="has begun another session: messages to it were lost"):
        session.accept(Envelope(4, 1, 0, b"x"))


def test_what_is_outside_the_session_is_handed_on_in_its_epoch_and_not_counted() -> None:
    session = Session(3)
    assert session.accept(Envelope(3, 0, 0, b"x")) and session.accept(Envelope(3, 1, 0, b"x"))
    assert open_envelope(session.seal_outside(b"x")) == (3, 0, 1, b"x")


def test_whose_session_is_not_known_at_the_other_end_has_lost_it() -> None:
    session = Session(3)
    assert not session.accept(open_envelope(not_known(2)))
    with pytest.raises(SessionLost, match="does not know this session"):
        session.accept(open_envelope(not_known(3)))


def test_a_session_is_settled_when_both_ends_know_that_everything_has_arrived() -> None:
    link = Link()
    assert link.dialler.is_settled and link.other.is_settled
    link.up()
    assert not link.dialler.is_settled and link.other.is_settled, "the answer comes first"
    link.down()
    assert not link.dialler.is_settled and not link.other.is_settled
    link.other.accept(open_envelope(link.dialler.tick()))
    assert link.dialler.is_settled and link.other.is_settled


def test_who_confirms_what_was_never_sent_answers_somebody_else() -> None:
    session = Session(3)
    session.seal(b"x")
    with pytest.raises(SessionLost, match="has received 2 messages of 1 that were sent to it"):
        session.accept(Envelope(3, 1, 2, b"x"))


def test_what_is_sent_must_be_confirmed_some_ticks_later() -> None:
    link = Link()

    def tick() -> None:
        """The other end says its numbers, and then a while has passed."""
        link.dialler.accept(open_envelope(link.other.tick()))
        link.dialler.tick()

    link.down()
    for _ in range(2 * MOST_TICKS):  # nothing was sent yet
        tick()
    link.up()
    for _ in range(2 * MOST_TICKS):  # the first was confirmed, and nothing was sent since
        tick()
    link.dialler.seal(b"lost")
    link.dialler.seal(b"lost, too")
    for _ in range(MOST_TICKS - 1):
        tick()
    with pytest.raises(SessionLost, match="has not received message 2 of 3 that were sent to it"):
        tick()


def test_a_silent_end_is_not_blamed_and_old_words_count_once() -> None:
    """It was paused, or we were: what it says was sent long before our message."""
    link = Link()
    link.dialler.seal(b"x")
    for _ in range(5 * MOST_TICKS):
        link.dialler.tick()
    link.down(5 * MOST_TICKS)
    link.dialler.tick()
    for _ in range(MOST_TICKS - 2):
        link.down()
        link.dialler.tick()
    link.down()
    with pytest.raises(SessionLost):
        link.dialler.tick()
