import pytest

from protocol.errors import WireError
from protocol.logprobs import Logprobs, LogprobsAsked, TokenLogprob, checked, of_tokens, pieces_of
from protocol.message import MAX_BLOB_BYTES

TOKENS = (
    TokenLogprob(-0.5, 1, ((3, -0.5), (4, -1.0))),
    TokenLogprob(-2.0, 9, ((3, -0.25), (0, float("-inf")))),
    TokenLogprob(0.0, 1, ((7, 0.0), (8, -64.0))),
)
ASKED = LogprobsAsked(2)


def test_round_trip_and_parts() -> None:
    logprobs = of_tokens(TOKENS)
    assert checked(logprobs, ASKED, 3) == TOKENS and len(logprobs.raw) == 3 * logprobs.row_bytes
    assert logprobs.part(1, 3).tokens() == TOKENS[1:] and logprobs.part(0, 0).tokens() == ()
    assert checked(None, None, 3) == ()


@pytest.mark.parametrize(
    ("logprobs", "asked", "num_tokens"),
    [
        (None, ASKED, 3),
        (of_tokens(TOKENS), None, 3),
        (of_tokens(TOKENS), ASKED, 2),
        (of_tokens(TOKENS), LogprobsAsked(1), 3),
        (Logprobs(2, of_tokens(TOKENS).raw[:-1]), ASKED, 3),
        (of_tokens((TOKENS[0]._replace(logprob=0.5),)), ASKED, 1),
        (of_tokens((TOKENS[0]._replace(logprob=float("nan")),)), ASKED, 1),
        (of_tokens((TOKENS[0]._replace(rank=0),)), ASKED, 1),
        (of_tokens((TOKENS[0]._replace(top=((-1, -1.0), (2, -2.0))),)), ASKED, 1),
    ],
)
def test_what_makes_no_sense_is_refused(
    logprobs: Logprobs | None, asked: LogprobsAsked | None, num_tokens: int
) -> None:
    with pytest.raises(WireError, match="logprobs: got"):
        checked(logprobs, asked, num_tokens)


def test_pieces_are_whole_rows_that_fit_into_a_message() -> None:
    raw = bytes(range(256)) * 168 * 8  # 2048 tokens
    pieces = pieces_of(20, raw)
    assert [piece.num_tokens for piece in pieces] == [1560, 488]
    assert b"".join(piece.raw for piece in pieces) == raw and len(pieces[0].raw) <= MAX_BLOB_BYTES
    assert pieces_of(0, b"") == ()
