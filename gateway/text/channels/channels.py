"""Tells of each text and marker of a choice whether it is text, reasoning, or of a call of a tool. Pure.

    THINK --closing marker--> TEXT          a call may begin in both, and ends the thoughts
      ^-----opening marker------'           only at the start and directly behind a call; elsewhere it is text

A call that is not whole up to its arguments, or calls no known tool, was none: it is shown where it stands. One whose
arguments turn out to be no JSON has been told in part: it is broken, and shown as well. White space beside calls, and
line breaks around thoughts, are of no channel.
"""

import hashlib
from enum import Enum, auto
from itertools import groupby

from gateway.text.channels.markers import Markers, TextMarkers
from gateway.text.channels.readers import CallReader, Tools
from gateway.words.events import CallBegin, CallBroken, CallDelta, CallEnd, Event, ReasoningDelta, TextDelta

MAX_CALLS = 128  # of a choice; further ones are left out
LINE_BREAKS = "\r\n"


class _Home(Enum):
    """Where text goes that is of no call."""

    THINK = auto()
    TEXT = auto()


class Channels:
    """The channels of one choice. The ids of its calls are the same whenever the same answer is read."""

    def __init__(
        self,
        markers: Markers,
        *,
        tools: Tools,
        is_reasoning_open: bool,
        response_id: str,
        choice: int,
        most_calls: int = MAX_CALLS,
    ) -> None:
        self._markers, self._in_text = markers, TextMarkers(markers)
        self._calls = markers.format.calls if tools else None
        self._reasoning = markers.format.reasoning
        self._tools, self._answer, self._most_calls = tools, f"{response_id} {choice}", most_calls

        self._home = _Home.THINK if is_reasoning_open else _Home.TEXT
        self._drops_breaks = is_reasoning_open  # line breaks that come next
        self._is_start = True  # nothing but white space was read
        self._is_behind_call = False  # nothing but white space was read since
        self._held: list[str] = []  # white space at the end, then what may become a call
        self._reader: CallReader | None = None  # between the markers of calls
        self._is_begun = False  # the call of the reader was told
        self._read: list[str] = []  # the call of the reader since then, as it is written, and what was held before it
        self._has_called = False  # between these markers a call was told
        self._home_before = self._home  # where text went when the call of the reader began
        self._num_calls = 0
        self._num_whole = 0  # of these, the calls that were not broken
        self._events: list[Event] = []  # of this text or marker

    @property
    def is_reasoning(self) -> bool:
        """What comes next is of the thoughts, unless a marker ends them."""
        return self._home is _Home.THINK

    @property
    def is_text(self) -> bool:
        """What comes next is text of the answer, unless a marker changes that."""
        return self._home is _Home.TEXT and self._reader is None

    def is_marker(self, token_id: int) -> bool:
        """The token is a marker by itself."""
        return token_id in self._markers.by_id

    def text(self, text: str) -> list[Event]:
        """What the choice gains by this text."""
        for plain, marker in self._in_text.split(text):
            self._take(plain)
            if marker:
                self._mark(marker)
        return self._told()

    def marker(self, token_id: int) -> list[Event]:
        """What the choice gains by a token that is a marker."""
        self._take(self._in_text.end())
        self._mark(self._markers.by_id[token_id])
        return self._told()

    def settle(self) -> list[Event]:
        """A special token that is not shown stands here: what was held before it becomes no marker and no call."""
        self._take(self._in_text.end())
        if self._reader is None and not self._is_behind_call:
            self._tell("".join(self._held))
            self._held = []
        return self._told()

    def end(self, *, is_cut: bool = False) -> list[Event]:
        """What was held back, when the answer is over. `is_cut`: the model would have gone on, also with a call."""
        self._take(self._in_text.end())

        if self._reader is not None:
            if not self._is_begun:
                self._give_up()
            elif is_cut:
                self._add_arguments(self._reader.end())
                self._end_call()
            else:
                self._end_or_break(self._reader, "")

        if not self._is_behind_call:
            self._tell("".join(self._held))
        return self._told()

    def _take(self, text: str) -> None:
        """Text outside of markers. What is behind the end of a call may begin the next one."""
        while text:
            if self._reader is None:
                self._plain(text)
                return
            text = self._read_call(self._reader, text)

    def _mark(self, marker: str) -> None:
        """A marker: within an argument it is text, else it ends the call that is being read, and then counts."""
        calls, tags = self._calls, self._reasoning
        if self._reader is not None and self._reader.takes_markers:
            self._take(marker)
            return
        if self._reader is not None:
            self._break_off(self._reader)
            if calls is not None and marker == calls.closing and self._has_called:
                self._held = [] if self._is_behind_call else self._held
                return

        if calls is not None and marker == calls.opening:
            self._held.append(marker)
            self._reader, self._is_begun, self._has_called = calls.reader(self._tools), False, False
        elif tags is not None and marker == tags.closing and self.is_reasoning:
            self._end_reasoning()
        elif tags is not None and marker == tags.opening and self._may_begin_reasoning:
            self._begin_reasoning()
        else:
            self._plain(marker)

    def _plain(self, text: str) -> None:
        """Text of no call. White space is held where a marker may follow that drops it."""
        if self._drops_breaks:
            text = text.lstrip(LINE_BREAKS)
        if not text:
            return

        self._drops_breaks = False
        may_drop = self._calls is not None or self.is_reasoning or (self._is_start and text.isspace())
        shown = text.rstrip() if may_drop else text
        if shown:
            held, self._held = self._held, []
            self._tell("".join(held) + shown)
            self._is_start = self._is_behind_call = False
        if len(shown) < len(text):
            self._held.append(text[len(shown) :])

    @property
    def _may_begin_reasoning(self) -> bool:
        """Elsewhere an answer only tells of the marker."""
        return self._is_start or (self._is_behind_call and not self.is_reasoning)

    def _begin_reasoning(self) -> None:
        self._held = []
        self._home, self._drops_breaks = _Home.THINK, True

    def _end_reasoning(self) -> None:
        self._tell("".join(self._held).rstrip(LINE_BREAKS))
        self._held = []
        self._home, self._drops_breaks, self._is_start = _Home.TEXT, True, False

    def _read_call(self, reader: CallReader, text: str) -> str:
        """Text between the markers of calls. Returns what is behind the end of a call."""
        arguments, rest = reader.read(text)
        if reader.name is None or not self._begin_call(reader.name):
            self._held.append(text)
            if reader.name is not None or reader.is_broken:
                self._give_up()
            return ""

        self._add_arguments(arguments)
        self._read.append(text)
        if reader.is_over or reader.is_broken:
            rest = self._end_or_break(reader, rest)
            if reader.is_over and self._calls is not None:
                self._reader = self._calls.reader(self._tools)
        return rest

    def _begin_call(self, name: str) -> bool:
        """Tells that the call has begun, if it was not told. Returns whether it has begun."""
        if self._is_begun:
            return True
        if self._calls is None:
            return False

        digest = hashlib.sha256(f"{self._answer} {self._num_calls}".encode()).hexdigest()[:24]
        call_id = self._calls.id_shape.format(digest=digest, name=name, index=self._num_calls)
        self._tell_call(CallBegin(self._num_calls, call_id, name))

        self._read, self._held = self._held, []
        self._home_before = self._home
        self._home, self._drops_breaks, self._is_start = _Home.TEXT, False, False
        self._is_begun = self._has_called = True
        return True

    def _add_arguments(self, json: str) -> None:
        if json:
            self._tell_call(CallDelta(self._num_calls, json))

    def _end_or_break(self, reader: CallReader, rest: str) -> str:
        """The call ends before `rest`. Returns what is to be read next: one without whole arguments was none."""
        if reader.is_whole:
            self._end_call()
            return rest

        read = "".join(self._read)
        self._tell_call(CallBroken(self._num_calls))
        self._num_calls += 1
        self._reader, self._is_begun, self._is_behind_call, self._has_called = None, False, False, False
        self._home = self._home_before
        if self._num_whole < self._most_calls:
            self._plain(read.removesuffix(rest))
        return rest

    def _end_call(self) -> None:
        self._tell_call(CallEnd(self._num_calls))
        self._num_calls, self._num_whole = self._num_calls + 1, self._num_whole + 1
        self._reader, self._is_begun, self._is_behind_call = None, False, True

    def _break_off(self, reader: CallReader) -> None:
        """A marker stands where the reader takes none."""
        arguments, rest = reader.break_off()
        if reader.name is None or not self._begin_call(reader.name):
            self._give_up()
            return
        self._add_arguments(arguments)
        self._plain(self._end_or_break(reader, rest))

    def _give_up(self) -> None:
        """What the reader has read was no call."""
        held, self._held, self._reader = self._held, [], None
        self._plain("".join(held))

    def _tell(self, text: str) -> None:
        if text:
            self._events.append(ReasoningDelta(text) if self.is_reasoning else TextDelta(text))

    def _tell_call(self, event: CallBegin | CallDelta | CallEnd | CallBroken) -> None:
        """Calls beyond the most that a choice may have are read, but not told."""
        if self._num_whole < self._most_calls:
            self._events.append(event)

    def _told(self) -> list[Event]:
        """The events of this text or marker."""
        events, self._events = self._events, []
        return joined(events)


def joined(events: list[Event]) -> list[Event]:
    """The events with neighbours of one kind as one."""
    if len(events) < 2:
        return events
    if len(set(map(type, events))) == 1:
        return _as_one(events)
    return [event for _, neighbours in groupby(events, key=type) for event in _as_one(list(neighbours))]


def _as_one(events: list[Event]) -> list[Event]:
    """Events of one kind: texts and arguments joined. Two calls always have other events between their arguments."""
    match events[0]:
        case TextDelta():
            return [TextDelta("".join(event.text for event in events if isinstance(event, TextDelta)))]
        case ReasoningDelta():
            return [ReasoningDelta("".join(event.text for event in events if isinstance(event, ReasoningDelta)))]
        case CallDelta(number):
            return [CallDelta(number, "".join(event.json for event in events if isinstance(event, CallDelta)))]
    return events
