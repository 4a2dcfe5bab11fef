"""The requests of one conversation: their bodies, with all that was said before, and what came of each.

    tokens  {"prompt": [ids]}   text  {"prompt": "..."}   chat  {"messages": [...]}

A conversation goes on as long as its answers end as they should.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from loadtest.drive.events import Heard
from loadtest.figures.record import Ending, Record
from loadtest.http_exchange import Broken, Connections, refusal
from loadtest.work.conversations import Conversation, Turn
from runtime.clock import Clock

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class Listener(Protocol):
    """Is told of each request."""

    def began(self, heard: Heard) -> None:
        """A request is sent; `heard` fills while its answer comes."""
        ...

    def ended(self, record: Record, heard: Heard) -> None:
        """Called once for each that began."""
        ...


class History(Protocol):
    """What was said in a conversation so far."""

    def ask(self, said: Any) -> dict[str, Any]:
        """Adds what the client says; returns the fields of the request."""
        ...

    def hear(self, heard: Heard) -> None:
        """Adds the answer."""
        ...


class TokenHistory:
    """Token ids, answers included."""

    def __init__(self) -> None:
        self._ids: list[int] = []

    def ask(self, said: Any) -> dict[str, Any]:
        """Adds what the client says; returns the fields of the request."""
        self._ids += said
        return {"prompt": self._ids}

    def hear(self, heard: Heard) -> None:
        """Adds the answer."""
        self._ids += heard.ids


class TextHistory:
    """One text."""

    def __init__(self) -> None:
        self._text = ""

    def ask(self, said: Any) -> dict[str, Any]:
        """Adds what the client says; returns the fields of the request."""
        self._text += said
        return {"prompt": self._text}

    def hear(self, heard: Heard) -> None:
        """Adds the answer."""
        self._text += "".join(heard.texts) + "\n"


class ChatHistory:
    """Messages of a chat."""

    def __init__(self) -> None:
        self._messages: list[dict[str, str]] = []

    def ask(self, said: Any) -> dict[str, Any]:
        """Adds what the client says; returns the fields of the request."""
        self._messages.append({"role": "user", "content": said})
        return {"messages": self._messages}

    def hear(self, heard: Heard) -> None:
        """Adds the answer."""
        self._messages.append({"role": "assistant", "content": "".join(heard.texts)})


@dataclass(frozen=True)
class Asking:
    """How requests are made. `fields` are added to each body. `keeps`: answers are kept, not only timed."""

    connections: Connections
    path: str
    model: str
    history: Callable[[], History]
    fields: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 600.0
    keeps: bool = False

    def body(self, history: History, turn: Turn) -> bytes:
        """The JSON of a request."""
        limit = {"max_tokens": turn.max_tokens}
        return orjson.dumps({"model": self.model, **history.ask(turn.said), **limit, "stream": True, **self.fields})


class Talk:
    """One conversation. `listener` is told of the end of each request, also when `ask` is cancelled."""

    def __init__(self, asking: Asking, clock: Clock, start: float, number: int, listener: Listener) -> None:
        self._asking = asking
        self._clock = clock
        self._start = start
        self._number = number
        self._listener = listener
        self._history = asking.history()

    async def ask(self, conversation: Conversation, index: int, due_s: float) -> bool:
        """Sends a turn and hears its answer. Whether the conversation can go on."""
        turn, asking = conversation.turns[index], self._asking
        is_last = index == len(conversation.turns) - 1
        body = asking.body(self._history, turn)
        heard = Heard(self._start, asking.keeps or not is_last, turn.cancel_after)
        sent_s = self._clock.now() - self._start
        self._listener.began(heard)

        try:
            status = await asking.connections.exchange("POST", asking.path, body, heard.line, asking.timeout_s)
            self._judge(heard, status)
        except Broken as broken:
            heard.fail(broken.kind, broken)
        except asyncio.CancelledError:
            heard.ending = Ending.UNFINISHED
            raise
        finally:
            self._listener.ended(self._record(heard, index, due_s, sent_s), heard)

        if heard.ending is Ending.DONE and not is_last:
            self._history.hear(heard)
        return heard.ending is Ending.DONE

    def _judge(self, heard: Heard, status: int) -> None:
        """Whether the answer is whole."""
        if heard.ending is Ending.CANCELLED:
            return
        if status != 200:
            heard.fail(f"HTTP {status}", refusal(status, b" ".join(heard.others)))
        elif not heard.num_events:
            heard.fail("no stream", f"the answer is no stream of events: {b' '.join(heard.others)[:200]!r}")
        elif not heard.is_over:
            heard.fail("no [DONE]", "the stream ended without [DONE]")
        elif not heard.arrivals:
            heard.fail("no token", "the stream ended without a token")

    def _record(self, heard: Heard, index: int, due_s: float, sent_s: float) -> Record:
        return Record(
            conversation=self._number, turn=index, due_s=due_s, sent_s=sent_s, end_s=self._clock.now() - self._start,
            arrivals=heard.arrivals, counts=heard.counts, counting=heard.counting, ending=heard.ending,
            kind=heard.kind, error=heard.error, num_prompt=heard.num_prompt, num_cached=heard.num_cached,
            num_said=heard.num_said, answer=heard.answer,
        )  # fmt: skip
