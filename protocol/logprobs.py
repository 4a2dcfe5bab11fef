"""Log-probabilities of tokens, drawn ones and those of a prompt: what a request asks for, and how they travel.
model/logprobs.py computes them.

Those of a token are rows of 32-bit words, little-endian: its log-probability (float32), its rank (1: no token is
likelier), then id and log-probability of each of the likeliest tokens, the likeliest first.
"""

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from sys import byteorder
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from protocol.errors import WireError
from protocol.message import MAX_BLOB_BYTES, Blob, Flag, Message, Positive

WORD: Final = 4  # bytes
MAX_TOP_LOGPROBS: Final = 20  # as in OpenAI's API
NumTop = Annotated[int, Field(strict=True, ge=0, le=MAX_TOP_LOGPROBS)]


@dataclass(frozen=True)
class LogprobsAsked(Message):
    """What a request asks for, for each token that is drawn.

    `processed`: of the distribution that the token was drawn from, behind logit rules, bans, temperature and masks.
    Otherwise of the model's own logits.
    """

    num_top: NumTop = 0  # how many of the likeliest tokens, beside the drawn one
    processed: Flag = False


@dataclass(frozen=True)
class PromptLogprobsAsked(Message):
    """What a request asks for, for its prompt's own tokens from `start` on. They are of the model's own logits.

    The first token of a prompt has none, because nothing comes before it.
    """

    num_top: NumTop = 0
    start: Positive = 1


class TokenLogprob(NamedTuple):
    """The natural logarithm of a token's probability, minus infinity for 0; and the likeliest tokens at its place."""

    logprob: float
    rank: int  # 1: no token is likelier
    top: tuple[tuple[int, float], ...]  # (id, log-probability), the likeliest first


@dataclass(frozen=True)
class Logprobs(Message):
    """Those of consecutive tokens. `num_top` is less than what was asked for if the vocabulary is that small."""

    num_top: NumTop
    raw: Blob  # see above

    @property
    def row_bytes(self) -> int:
        """Bytes of one token."""
        return row_of(self.num_top).size

    @property
    def num_tokens(self) -> int:
        """How many tokens they are of."""
        return len(self.raw) // self.row_bytes

    def part(self, start: int, stop: int) -> "Logprobs":
        """Those of the tokens [start, stop) of these."""
        size = self.row_bytes
        return Logprobs(self.num_top, self.raw[start * size : stop * size])

    def tokens(self) -> tuple[TokenLogprob, ...]:
        """Those of each token."""
        return tuple(unpacked(self.num_top, self.raw))


@cache
def row_of(num_top: int) -> struct.Struct:
    """The words of one token."""
    return struct.Struct("<fi" + "if" * num_top)


def packed(scored: TokenLogprob) -> bytes:
    """The words of one token."""
    return row_of(len(scored.top)).pack(scored.logprob, scored.rank, *(part for pair in scored.top for part in pair))


def unpacked(num_top: int, raw: bytes | bytearray) -> Iterator[TokenLogprob]:
    """Those of each token, one after another: unpacked they take ten times as much memory."""
    for row in row_of(num_top).iter_unpack(raw):
        yield TokenLogprob(row[0], row[1], tuple(zip(row[2::2], row[3::2], strict=True)))


def checked(logprobs: Logprobs | None, asked: LogprobsAsked | None, num_tokens: int) -> tuple[TokenLogprob, ...]:
    """Those of `num_tokens` tokens that came from another process; none if none were asked for. WireError if they are
    not what was asked for, or make no sense."""
    if asked is None or logprobs is None:
        if (asked is None) != (logprobs is None):
            raise WireError(f"logprobs: got {'none' if logprobs is None else 'some'}, expected the other")
        return ()
    check_tokens(logprobs, asked.num_top, num_tokens)
    return logprobs.tokens()


def check_tokens(logprobs: Logprobs, num_top: int, num_tokens: int) -> None:
    """WireError, as `checked` has it, unless they are those of `num_tokens` tokens, with `num_top` of the likeliest
    ones at most. Column by column: a prompt may have many tokens."""
    if logprobs.num_top > num_top or len(logprobs.raw) != num_tokens * logprobs.row_bytes:
        raise WireError(
            f"logprobs: got {len(logprobs.raw)} bytes with {logprobs.num_top} likeliest tokens each, "
            f"expected those of {num_tokens} tokens with {num_top} at most"
        )
    num_words = logprobs.row_bytes // WORD
    floats, ints = array("f", logprobs.raw), array("i", logprobs.raw)
    if byteorder != "little":
        floats.byteswap()
        ints.byteswap()
    for column in (0, *range(3, num_words, 2)):
        values = floats[column::num_words]
        if not all(map((0.0).__ge__, values)):  # false for a NaN, too
            raise WireError(f"logprobs: got {next(each for each in values if not each <= 0)}, expected at most 0")
    for column, least in ((1, 1), *((column, 0) for column in range(2, num_words, 2))):
        lowest = min(ints[column::num_words], default=least)
        if lowest < least:
            what = "a rank" if column == 1 else "a token id"
            raise WireError(f"logprobs: got {lowest}, expected {what} of at least {least}")


def of_tokens(tokens: tuple[TokenLogprob, ...]) -> Logprobs:
    """The same as they travel. All have as many likeliest tokens."""
    return Logprobs(len(tokens[0].top) if tokens else 0, b"".join(map(packed, tokens)))


def pieces_of(num_top: int, raw: bytes) -> tuple[Logprobs, ...]:
    """Those of any number of tokens, in pieces that fit into a message."""
    size = row_of(num_top).size
    step = MAX_BLOB_BYTES // size * size
    return tuple(Logprobs(num_top, raw[start : start + step]) for start in range(0, len(raw), step))
