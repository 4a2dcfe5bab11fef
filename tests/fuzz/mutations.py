"""Makes inputs of earlier ones: flips, cuts, joins, repeats, and words that parsers find hard."""

from collections.abc import Sequence
from random import Random
from typing import Final

SHORT: Final = 16 * 1024  # bytes: the gateway reads a body of this length on its loop
LONG: Final = 1024 * 1024
P_LONG: Final = 0.01  # of inputs that grow to LONG
MAX_STEPS: Final = 6

# Text, JSON, numbers and HTTP at their edges, each as UTF-8 or as bytes that are none.
WORDS: Final = (
    *(each.encode() for each in " |\n|\r\n|\t|\0|a|A|0|9|'|\"|\\|.|,|:|;|[|]|{|}|<|>|%|▁|Ġ|##".split("|")),
    *(each.encode() for each in ("\u0301", "\u0344", "\u200d", "\u3000", "\ufdfa", "\ufb2c", "\ufffd", "\U0001d160")),
    *(each.encode() for each in ("的", "각", "\u1100\u1161", "İ", "ß", "é", "👨\u200d👩", "\U0010ffff")),
    *(each.encode() for each in ("<|im_start|>", "<|im_end|>", "<|im_", "<0xFF>", "<unk>", "[CLS]", "</s>")),
    *(b"\xff", b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf"),
    *(b"\\ud800", b"\\udc00", b"\\u0000", b"\\ufdfa", b"NaN", b"Infinity", b"-0", b"1e999", b"1E-999", b"null"),
    *(b"true", b"9" * 30, b"9" * 4300, b"-9223372036854775808", b"18446744073709551616", b"0." + b"0" * 400 + b"1"),
    *(b'{"a":', b'[{"', b'"k":1,', b'{"role":"user","content":"', b'"}]}', b'"stop":["', b'"logit_bias":{"0":'),
    *(b"transfer-encoding: chunked\r\n", b"content-length: 5\r\n", b"upgrade: h2c\r\n", b"expect: 100-continue\r\n"),
    *(b"connection: close\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b"ffffffffffffffff\r\n", b"GET / HTTP/1.1\r\n"),
)


def mutated(random: Random, pool: Sequence[bytes]) -> bytes:
    """A new input, of at most SHORT bytes in most cases, and never more than LONG."""
    most = LONG if random.random() < P_LONG else SHORT
    raw = random.choice(pool)
    for _ in range(random.randint(1, MAX_STEPS)):
        raw = _step(random, raw, pool, most)[:most]
    return raw


def _step(random: Random, raw: bytes, pool: Sequence[bytes], most: int) -> bytes:
    """One change."""
    begin, end = sorted(random.randint(0, len(raw)) for _ in range(2))
    match random.randrange(7):
        case 0:
            return raw[:begin] + raw[end:]
        case 1:
            return raw[:begin] + random.choice(WORDS) + raw[begin:]
        case 2:
            return raw[:begin] + random.choice(WORDS) + raw[end:]
        case 3:
            return raw[:begin] + _repeated(random, random.choice(WORDS), most) + raw[begin:]
        case 4:  # a part of the input, many times
            return raw[:begin] + _repeated(random, raw[begin:end], most) + raw[end:]
        case 5:
            other = random.choice(pool)
            return raw[:begin] + other[random.randint(0, len(other)) :]
        case _:
            return raw[:begin] + bytes([random.randrange(256)]) + raw[begin + 1 :]


def _repeated(random: Random, part: bytes, most: int) -> bytes:
    """`part` a few times, or as often as there is room: extremes are what parsers fail at."""
    room = most // max(1, len(part))
    return part * random.choice((2, 3, 17, 300, room // 2, room))
