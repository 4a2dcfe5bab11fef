"""Conversations with a server of a few lines: what is sent, what is recorded, and every way to fail."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from loadtest.drive.events import Heard
from loadtest.drive.talk import CHAT, COMPLETIONS, Asking, ChatHistory, Talk, TextHistory, TokenHistory
from loadtest.figures.record import Counting, Ending, Record
from loadtest.http_exchange import Connections
from loadtest.work.conversations import Conversation, Turn
from runtime.clock import MonotonicClock
from tests.loadtest.openai_stand_in import StandIn, standing_in, tokens

CLOCK = MonotonicClock()


def two_tokens(body: dict[str, Any]) -> list[bytes | None]:
    """Two tokens of one event each."""
    key = "delta" if "messages" in body else None
    parts = [{"text": text, "token_ids": [number]} for number, text in ((5, "so"), (6, "on"))]
    choices = [{"delta": {"content": part["text"]}} if key else part for part in parts]
    events = [b'data: {"choices":[%s]}\n\n' % str(choice).replace("'", '"').encode() for choice in choices]
    return [*events, b"data: [DONE]\n\n"]


class Records:
    """Listens. `was_told` is set when a request has ended."""

    def __init__(self) -> None:
        self.found: list[Record] = []
        self.active: list[Heard] = []
        self.was_told = asyncio.Event()

    def began(self, heard: Heard) -> None:
        self.active.append(heard)

    def ended(self, record: Record, heard: Heard) -> None:
        self.active.remove(heard)
        self.found.append(record)
        self.was_told.set()


async def talked(stand_in: StandIn, conversation: Conversation, history: Any, **options: Any) -> list[Record]:
    records = Records()
    async with standing_in(stand_in) as server:
        connections = Connections(server, CLOCK)
        asking = Asking(connections, CHAT if history is ChatHistory else COMPLETIONS, "m", history, **options)
        talk = Talk(asking, CLOCK, CLOCK.now(), 3, records)
        for index in range(len(conversation.turns)):
            if not await talk.ask(conversation, index, 0.0):
                break
        connections.close()
    assert not records.active
    return records.found


@pytest.mark.parametrize(
    ("history", "said", "asked"),
    [
        (TokenHistory, ((1, 2), (3,)), [{"prompt": [1, 2]}, {"prompt": [1, 2, 5, 6, 3]}]),
        (TextHistory, ("a", "b"), [{"prompt": "a"}, {"prompt": "asoon\nb"}]),
        (
            ChatHistory,
            ("a", "b"),
            [
                {"messages": [{"role": "user", "content": "a"}]},
                {
                    "messages": [
                        {"role": "user", "content": "a"},
                        {"role": "assistant", "content": "soon"},
                        {"role": "user", "content": "b"},
                    ]
                },
            ],
        ),
    ],
)
async def test_a_later_turn_has_all_that_was_said(history: Any, said: Any, asked: list[dict[str, Any]]) -> None:
    stand_in = StandIn(two_tokens)
    records = await talked(stand_in, Conversation((Turn(said[0], 4), Turn(said[1], 7))), history, fields={"seed": 1})
    assert [record.ending for record in records] == [Ending.DONE] * 2
    assert [(record.conversation, record.turn, len(record.arrivals)) for record in records] == [(3, 0, 2), (3, 1, 2)]
    common = {"model": "m", "stream": True, "seed": 1}
    assert stand_in.bodies == [{**asked[0], **common, "max_tokens": 4}, {**asked[1], **common, "max_tokens": 7}]


def replying(*pieces: bytes | None) -> StandIn:
    return StandIn(lambda _: pieces)


FULL = b"HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("stand_in", "kind", "words"),
    [
        (StandIn(lambda _: [b'{"error": {"message": "full"}}'], FULL), "HTTP 503", "HTTP 503: full"),
        (replying(b'{"choices": [{"text": "all at once"}]}'), "no stream", "the answer is no stream of events"),
        (replying(b'data: {"choices":[{"text":"x"}]}\n\n'), "no [DONE]", "ended without"),
        (replying(b"data: [DONE]\n\n"), "no token", "without a token"),
        (
            replying(b'data: {"choices":[{"text":"x"}]}\n\n', None),
            "the connection was closed before the answer's end",
            "",
        ),
        (StandIn(tokens, b"nonsense\r\n\r\n"), "not HTTP", "not HTTP: "),
    ],
)
async def test_each_failure_has_its_kind(stand_in: StandIn, kind: str, words: str) -> None:
    [record] = await talked(stand_in, Conversation((Turn((1,), 4), Turn((1,), 4))), TokenHistory)
    assert (record.ending, record.kind) == (Ending.FAILED, kind) and words in record.error


async def test_a_client_that_leaves_closes_its_connection() -> None:
    stand_in = StandIn(endless)
    [record] = await talked(stand_in, Conversation((Turn((1,), 400, cancel_after=2),)), TokenHistory)
    assert (record.ending, record.num_tokens) == (Ending.CANCELLED, 2)


def endless(body: dict[str, Any]) -> Iterator[bytes | None]:
    while True:
        yield b'data: {"choices":[{"text":"x"}]}\n\n'


async def test_a_request_that_is_cut_short_is_recorded_as_unfinished() -> None:
    records, stand_in = Records(), StandIn(endless, pause_s=0.001)
    async with standing_in(stand_in) as server:
        asking = Asking(Connections(server, CLOCK), COMPLETIONS, "m", TokenHistory)
        talk = Talk(asking, CLOCK, CLOCK.now(), 0, records)
        task = asyncio.create_task(talk.ask(Conversation((Turn((1,), 4),)), 0, 0.0))
        await stand_in.asked.get()
        task.cancel()
        await records.was_told.wait()
        await asyncio.gather(task, return_exceptions=True)
    assert [record.ending for record in records.found] == [Ending.UNFINISHED]


async def test_nobody_there_is_a_failure_with_its_kind() -> None:
    records = Records()
    async with standing_in(StandIn(tokens)) as server:
        pass
    talk = Talk(Asking(Connections(server, CLOCK), COMPLETIONS, "m", TokenHistory), CLOCK, 0.0, 0, records)
    assert not await talk.ask(Conversation((Turn((1,), 4),)), 0, 0.0)
    [record] = records.found
    assert (record.ending, record.kind, record.counting) == (Ending.FAILED, "ConnectionRefusedError", Counting.CHUNKS)
