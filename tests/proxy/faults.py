"""What a proxy does to messages: turns a bit, passes them on twice, keeps them back. Each counts what it did.

What it does not know: sockets, what should come of it.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from protocol.frame import HEADER_BYTES, unpack_header
from tests.proxy.zmtp import Parts

Wanted = Callable[[Parts], bool]


def is_frame(message: Parts) -> bool:
    """Whether it is one of the data plane's."""
    return len(message[0]) == HEADER_BYTES


def is_last(message: Parts) -> bool:
    """Whether it is the last frame of a prompt."""
    return is_frame(message) and unpack_header(message[0]).is_last


def is_kv(message: Parts) -> bool:
    """Whether it carries KV, or says where KV was written."""
    return is_frame(message) and not unpack_header(message[0]).is_last


@dataclass
class Flips:
    """Turns one bit in each message that is drawn: of the header or of the rest, where `share` says how often of the
    header. `chance` is that of a message to be drawn."""

    rng: random.Random
    chance: float
    wanted: Wanted = is_frame
    share: float = 0.5
    most: int = 1_000_000
    bits: list[str] = field(default_factory=list)  # what was turned, as "part:byte.bit"

    def __call__(self, message: Parts) -> Iterable[Parts]:
        """See proxy.Tamper."""
        if len(self.bits) >= self.most or not self.wanted(message) or self.rng.random() >= self.chance:
            return (message,)
        sizes = [len(part) for part in message]
        in_header = len(message) == 1 or not sum(sizes[1:]) or self.rng.random() < self.share
        place = self.rng.randrange(sizes[0]) if in_header else sizes[0] + self.rng.randrange(sum(sizes[1:]))
        part = 0
        while place >= sizes[part]:
            place -= sizes[part]
            part += 1
        bit = self.rng.randrange(8)
        damaged = bytearray(message[part])
        damaged[place] ^= 1 << bit
        self.bits.append(f"{part}:{place}.{bit}")
        return ((*message[:part], bytes(damaged), *message[part + 1 :]),)


@dataclass
class Doubles:
    """Passes on messages twice: the second time at once, or when `later` others have passed."""

    wanted: Wanted
    later: int = 0
    num_doubled: int = 0
    _waiting: deque[Parts] = field(default_factory=deque)

    def __call__(self, message: Parts) -> Iterable[Parts]:
        """See proxy.Tamper."""
        if not self.wanted(message):
            return (message,)
        self._waiting.append(message)
        if len(self._waiting) <= self.later:
            return (message,)
        self.num_doubled += 1
        return (message, self._waiting.popleft())


@dataclass
class Holds:
    """Keeps back what is wanted."""

    wanted: Wanted
    kept: list[Parts] = field(default_factory=list)

    def __call__(self, message: Parts) -> Iterable[Parts]:
        """See proxy.Tamper."""
        if not self.wanted(message):
            return (message,)
        self.kept.append(message)
        return ()
