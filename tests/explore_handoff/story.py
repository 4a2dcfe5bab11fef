"""The story of a world, as lines for a person: each message with sender, receiver and fate, and the broken rule.

Lines are collected as they come, and formatted only for a seed that fails.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import msgpack

from protocol.errors import WireError
from protocol.frame import HEADER_BYTES, LAST_LAYER, unpack_header
from runtime.session import ENVELOPE_BYTES, open_envelope

KEPT = 20_000  # lines
SHOWN = 90  # of the newest, beside every fault
NUMBERS = "numbers"  # the kind of an envelope without a body
DULL = frozenset({"Heartbeat", "DataCredit", NUMBERS})
TOLD = ("request_id", "attempt", "num_replayed", "num_tokens", "reason", "code", "message")
_NAME_LENGTH = 14


@dataclass(frozen=True)
class Line:
    """`shown` is bytes of a message or frame, which follow `text`; without them the text is all."""

    at: float
    who: str
    text: str
    shown: bytes = b""
    is_fault: bool = False


@dataclass
class Story:
    """`happened` counts what the faults really did: a frame lost, a worker killed, ..."""

    happened: Counter[str] = field(default_factory=Counter)
    _lines: deque[Line] = field(default_factory=lambda: deque(maxlen=KEPT))

    def tell(self, at: float, who: str, text: str, shown: bytes = b"") -> None:
        """Something happened in the ordinary course of things."""
        self._lines.append(Line(at, who, text, shown))

    def fault(self, at: float, who: str, kind: str, text: str, shown: bytes = b"") -> None:
        """Something was done to them."""
        self.happened[kind] += 1
        self._lines.append(Line(at, who, f"{kind}: {text}", shown, is_fault=True))

    def text(self) -> str:
        """Every fault, and the newest of the rest; heartbeats and credit are left out."""
        lines = [line for line in self._lines if line.is_fault or kind_of(line.shown) not in DULL]
        first = max(0, len(lines) - SHOWN)
        kept = [line for index, line in enumerate(lines) if line.is_fault or index >= first]
        return "\n".join(_written(line) for line in kept)

    def digest(self) -> int:
        """Equal for two runs in which the same things happened at the same times, in any process."""
        return crc32("\n".join(f"{line.at} {line.who} {line.text}" for line in self._lines).encode())


def reservation(number: int) -> str:
    """As a person reads it: whose, and which."""
    return f"{number >> 32}.{number % 2**32}"


def kind_of(raw: bytes) -> str:
    """The name of a message; "" of a frame, or of nothing."""
    outer = _unpacked(raw)
    return str(outer[1]) if outer else ""


def _written(line: Line) -> str:
    mark = "!" if line.is_fault else " "
    shown = f" {_shown(line.shown)}" if line.shown else ""
    return f"{line.at:8.4f} {mark} {line.who:<{_NAME_LENGTH}} {line.text}{shown}"


def _shown(raw: bytes) -> str:
    outer = _unpacked(raw)
    return _frame(raw) if outer is None else f"{outer[1]}({_fields(outer[2])})"


def _unpacked(raw: bytes) -> Any:
    if len(raw) == ENVELOPE_BYTES:
        return [0, NUMBERS, {}]
    try:
        outer = msgpack.unpackb(open_envelope(raw).body) if raw else None
    except (WireError, ValueError, msgpack.exceptions.UnpackException):
        return None
    return outer if isinstance(outer, list) and len(outer) == 3 else None


def _fields(fields: dict[str, Any]) -> str:
    fields = {**fields.get("assign", {}), **fields}
    told = [f"{name}={fields[name]}" for name in TOLD if fields.get(name) not in (None, "")]
    if "reservation" in fields:
        told.append(f"reservation={reservation(fields['reservation'])}")
    if "instance" in fields:
        told.append(f"of={fields.get('worker_id')}#{fields['instance']}")
    if isinstance(address := fields.get("address"), dict):
        told.append(f"from={address['worker_id']}#{address['instance']}")
    if isinstance(prefill := fields.get("prefill"), dict):
        told.append(f"prefill={prefill['worker_id']}#{prefill['instance']}")
    if isinstance(choices := fields.get("choices"), list | tuple):
        told += [
            f"{each['request_id']}/{each['choice']} attempt {each['attempt']} seq {each['seq']}: {each['token_ids']}"
            f"{' ' + each['finish'] if each['finish'] else ''}"
            for each in choices
        ]
    return ", ".join(told)


def _frame(raw: bytes) -> str:
    try:
        header = unpack_header(raw[:HEADER_BYTES])
    except WireError as error:
        return f"({error.message})"
    what = "the last frame" if header.layer == LAST_LAYER else f"layer {header.layer} pages from {header.page_start}"
    of = f"reservation {reservation(header.reservation)} attempt {header.attempt}"
    return f"frame {header.sequence} of {of}: {what}"
