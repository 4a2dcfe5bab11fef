"""Answers whose client leaves, or whose connection fails, at any moment: the worker is told, nothing is left."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from starlette.types import Message

from gateway.dialects.openai.write import BodyWriter, EventWriter, Head
from gateway.dialects.openai.write_completion import CompletionForm
from gateway.generation.generation import Generation
from gateway.generation.tallies import Metrics
from gateway.generation.times import Times
from gateway.generation.translate import PreparedPrompt
from gateway.serving.answering import StreamedAnswer, WholeAnswer
from gateway.serving.long_answers import LongAnswers
from gateway.text.detokenizer import Detokenizer
from protocol.messages_gateway import ChoiceTokens, SamplingParams, Tokens
from runtime.clock import MonotonicClock
from testkit.fake_worker import PATIENCE_S
from tests.gateway.control_bench import ControlBench

HEAD = Head("r", 7, "m", CompletionForm(), with_token_ids=True)
MAX_TOKENS = 5


class Call:
    """One call of a client: its generation at one unified worker, its connection."""

    def __init__(self) -> None:
        self.bench, self.metrics = ControlBench("u0"), Metrics("story")
        prompt = PreparedPrompt((1, 2), SamplingParams(max_tokens=MAX_TOKENS), 1)
        times = Times(MonotonicClock(), self.metrics, received_at=0.0)
        self.generation = Generation("r", [prompt], lambda *_: Detokenizer(), self.bench.dispatch, times)
        with suppress(StopIteration):  # one prompt is assigned without a wait
            self.generation.start().send(None)
        self.messages: list[Message] = []
        self.has_left = asyncio.Event()
        self.fail_at: int | None = None  # the message whose sending fails
        self._num_tokens = 0

    async def receive(self) -> Message:
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if len(self.messages) == self.fail_at:
            raise OSError("the connection is gone")
        self.messages.append(message)

    def say(self, seq: int) -> None:
        """The worker says one token, the last of which ends the choice."""
        finish = "length" if seq + 1 == MAX_TOKENS else ""
        self.bench.say("u0", Tokens((ChoiceTokens("r-0", 0, 0, seq, (3,), finish),)))

    def answer(self, is_stream: bool) -> "asyncio.Task[Any]":
        """The answer under way."""
        answers = LongAnswers()
        answer = (
            StreamedAnswer(self.generation, EventWriter(HEAD, False, False), answers)
            if is_stream
            else WholeAnswer(self.generation, BodyWriter(HEAD), answers)
        )
        return asyncio.create_task(answer({"type": "http"}, self.receive, self.send))

    async def tokens(self, count: int) -> None:
        """The worker sends so many, each taken before the next."""
        await asyncio.sleep(0)  # the answer has begun
        for _ in range(count):
            self.say(self._num_tokens)
            self._num_tokens += 1
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def is_at_rest(self) -> bool:
        return len(self.bench.dispatch.requests) == 0 and not self.bench.dispatch.loads


def leave(call: Call, _task: "asyncio.Task[Any]") -> None:
    call.has_left.set()


def cancel(_call: Call, task: "asyncio.Task[Any]") -> None:
    task.cancel()


@pytest.mark.parametrize("end", [leave, cancel])
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("num_before", range(MAX_TOKENS))
async def test_leaving_at_any_token_cancels(
    num_before: int, is_stream: bool, end: Callable[[Call, "asyncio.Task[Any]"], None]
) -> None:
    call = Call()
    task = call.answer(is_stream)
    await call.tokens(num_before)
    assert not call.bench.cancels
    end(call, task)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(task, return_exceptions=True)
    assert [(each.request_id, each.choice) for each in call.bench.cancels] == [("r-0", -1)]
    assert call.is_at_rest()
    assert 'outcome="cancelled"} 1.0' in call.metrics.render().decode()
    assert not any(b"[DONE]" in message.get("body", b"") for message in call.messages)


@pytest.mark.parametrize("fail_at", range(4))
async def test_a_connection_that_fails_cancels(fail_at: int) -> None:
    """Nobody says that the client has left: sending fails, at the head or at any chunk."""
    call = Call()
    call.fail_at = fail_at
    task = call.answer(is_stream=True)
    await call.tokens(4)
    with pytest.raises(OSError, match="is gone"):
        await task
    assert len(call.messages) == fail_at
    assert len(call.bench.cancels) == 1 and call.is_at_rest()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_leaving_at_the_end_cancels_nothing(is_stream: bool) -> None:
    call = Call()
    task = call.answer(is_stream)
    await call.tokens(MAX_TOKENS)
    call.has_left.set()
    async with asyncio.timeout(PATIENCE_S):
        await task
    assert not call.bench.cancels and call.is_at_rest()
    assert 'outcome="ok"} 1.0' in call.metrics.render().decode()


async def test_one_write_for_what_came_together() -> None:
    call = Call()
    call.generation.bound_backlog(1, call.has_left.set)  # which is for a client that does not read
    task = call.answer(is_stream=True)
    for seq in range(MAX_TOKENS):  # no turn of the loop between them
        call.say(seq)
    await task
    bodies = [message["body"] for message in call.messages if message["type"] == "http.response.body"]
    assert [body.count(b"data: {") for body in bodies] == [MAX_TOKENS, 0] and b"[DONE]" in bodies[-1]


@pytest.mark.parametrize(
    "stuck_at, num_taken, num_late",
    [(0, 1, 3), (0, 1, 4), (1, 1, 3), (1, 1, 4), (2, 2, 2), (2, 2, 3)],  # the fifth token ends the choice
)
async def test_a_backlog_is_bounded_from_the_first_write_on(stuck_at: int, num_taken: int, num_late: int) -> None:
    """A client may have left unread what came before on its connection. What was dropped did not end well."""
    call, is_full, go_on = Call(), asyncio.Event(), asyncio.Event()
    call.generation.bound_backlog(num_late - 1, is_full.set)
    send = call.send

    async def stuck(message: Message) -> None:
        if len(call.messages) == stuck_at:
            await go_on.wait()
        await send(message)

    call.send = stuck  # type: ignore[method-assign]
    task = call.answer(is_stream=True)
    await call.tokens(num_taken)
    await call.tokens(num_late - 1)
    assert not is_full.is_set()
    await call.tokens(1)
    assert is_full.is_set() and call.is_at_rest()
    go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        await task
    assert not any(b"[DONE]" in message.get("body", b"") for message in call.messages)
    page = call.metrics.render().decode()
    assert 'outcome="cancelled"} 1.0' in page and 'outcome="ok"} 0.0' in page


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("num_before", [0, 2])
async def test_a_fault_in_the_text_of_one_request_is_its_own(
    is_stream: bool, num_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the end of whoever reads the workers' messages, which bring tokens of others, too."""
    call = Call()
    task = call.answer(is_stream)
    await call.tokens(num_before)

    def broken(_self: Detokenizer, token_id: int) -> str:
        raise OverflowError(f"no text for {token_id}")

    monkeypatch.setattr(Detokenizer, "feed", broken)
    await call.tokens(1)
    with pytest.raises(OverflowError, match="no text for 3"):
        await task
    assert len(call.bench.cancels) == 1 and call.is_at_rest()
    outcomes = re.findall(r'requests_total{model_name="story",outcome="\w+"} (\S+)', call.metrics.render().decode())
    assert outcomes and set(outcomes) == {"0.0"}  # the gate counts it
