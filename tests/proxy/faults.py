"""The faults that a proxy applies to messages: turn a bit, repeat a message, hold it back. Each counts its uses."""

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
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
    """Turns one bit in each message that is drawn, with the chance `chance`: with `share` in one of the header's bytes
    `header`, else behind the header."""

    rng: random.Random
    chance: float
    header: Sequence[int] = range(HEADER_BYTES)
    share: float = 0.5
    wanted: Wanted = is_frame
    turned: list[tuple[str, int]] = field(default_factory=list)  # ("header" | "KV" | "last message", byte)

    def __call__(self, message: Parts) -> Iterable[Parts]:
        """See proxy.Tamper."""
        if not self.wanted(message) or self.rng.random() >= self.chance:
            return (message,)
        body = b"".join(message[1:])
        if not body or self.rng.random() < self.share:
            index = self.rng.choice(self.header)
            self.turned.append(("header", index))
            return ((self._turn(message[0], index), *message[1:]),)
        index = self.rng.randrange(len(body))
        self.turned.append(("last message" if is_last(message) else "KV", index))
        return ((message[0], self._turn(body, index)),)

    @property
    def kinds(self) -> Counter[str]:
        """How many bits of what were turned."""
        return Counter(kind for kind, _ in self.turned)

    def _turn(self, raw: bytes, index: int) -> bytes:
        return raw[:index] + bytes([raw[index] ^ 1 << self.rng.randrange(8)]) + raw[index + 1 :]


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
    """Keeps back frames of the first sender that is seen, after `pass_first` of them, until it is told to let go; from
    then on it counts what still comes of that sender."""

    pass_first: int = 0
    sender: int = 0  # its instance
    kept: list[Parts] = field(default_factory=list)
    lets_go: bool = False
    num_late: int = 0
    _num_passed: int = 0

    def __call__(self, message: Parts) -> Iterable[Parts]:
        """See proxy.Tamper."""
        if not is_frame(message):
            return (message,)
        sender = unpack_header(message[0]).sender_instance
        self.sender = self.sender or sender
        if sender != self.sender:
            return (message,)
        if self.lets_go:
            self.num_late += 1
            return (message,)
        if self._num_passed < self.pass_first:
            self._num_passed += 1
            return (message,)
        self.kept.append(message)
        return ()
