"""A client request's hold on workers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from gateway.generation.generation import TURN_TOKENS, Generation
from gateway.generation.tallies import Metrics
from gateway.generation.times import Times
from gateway.generation.translate import PreparedPrompt
from gateway.routing.dispatch import Dispatch
from gateway.routing.requests import Delivery, Listener, RequestRecord
from gateway.text.detokenizer import Detokenizer
from gateway.words.events import Batch, Finish, Reason
from protocol.errors import Unavailable
from protocol.messages_gateway import FinishReason, SamplingParams
from runtime.clock import MonotonicClock


class Places:
    """A dispatch that takes so many prompts. With `loses` it finds out, at the second one, that the worker of the first
    is gone."""

    def __init__(self, room: int = 99, *, loses: bool = False) -> None:
        self.assigned: list[str] = []
        self.cancelled: list[tuple[str, int]] = []
        self._room, self._loses, self._listeners = room, loses, list[Listener]()

    def assign(self, request_id: str, prompt: PreparedPrompt, listener: Listener, *_: Any) -> RequestRecord:
        if len(self.assigned) == self._room:
            raise Unavailable("full")
        for each in self._listeners if self._loses else ():
            each.on_failed(Unavailable("gone"))
        self._listeners.append(listener)
        self.assigned.append(request_id)
        return RequestRecord(request_id, prompt, [], listener)

    def cancel(self, request_id: str, choice: int = -1) -> None:
        self.cancelled.append((request_id, choice))


def generation_of(
    dispatch: Places, num_prompts: int, length: int = 2, n: int = 1, text: type[Detokenizer] = Detokenizer
) -> Generation:
    prompt = PreparedPrompt((1,) * length, SamplingParams(max_tokens=3), n)
    times = Times(MonotonicClock(), Metrics("story"), received_at=0.0)
    return Generation("r", [prompt] * num_prompts, lambda *_: text(), cast(Dispatch, dispatch), times)


@pytest.mark.parametrize(
    ("dispatch", "why", "request_id"), [(Places(1), "full", "r-0"), (Places(loses=True), "gone", "r-1")]
)
async def test_all_prompts_are_assigned_or_none(dispatch: Places, why: str, request_id: str) -> None:
    generation, ended = generation_of(dispatch, 2), list[str]()
    generation.on_end = lambda: ended.append("r")
    with pytest.raises(Unavailable, match=why):
        await generation.start()
    assert (request_id, -1) in dispatch.cancelled and ended == ["r"]


class Broken(Detokenizer):
    """A fault of the gateway's own."""

    def feed(self, token_id: int) -> str:
        raise RuntimeError(token_id)


@pytest.mark.parametrize("ends", ["assigned", "lost", "fault", "stopped"])
async def test_others_get_turns_while_many_long_prompts_are_assigned(ends: str) -> None:
    dispatch = Places()
    generation = generation_of(dispatch, 6, TURN_TOKENS // 2, text=Broken)
    starting = asyncio.ensure_future(generation.start())
    turns = []
    while not starting.done():
        await asyncio.sleep(0)
        turns.append(len(dispatch.assigned))
        if ends == "lost" and turns[-1] == 4:
            generation.on_failed(Unavailable("gone"))
        elif ends == "fault" and turns[-1] == 4:
            generation.on_tokens(Delivery(0, (1,), None))
        elif ends == "stopped" and turns[-1] == 4:
            starting.cancel()
    assert turns[:2] == [2, 4]
    if ends == "assigned":
        assert turns[2] == 6 and not dispatch.cancelled and starting.result() is None
    else:
        assert {name for name, _ in dispatch.cancelled} == set(dispatch.assigned) and len(dispatch.assigned) in (4, 5)
        assert starting.cancelled() or isinstance(starting.exception(), Unavailable | RuntimeError)


async def test_prompts_that_are_aborted_before_they_are_assigned_are_cancelled() -> None:
    dispatch, ended = Places(), list[str]()
    generation = generation_of(dispatch, 3, TURN_TOKENS)
    generation.on_end = lambda: ended.append("r")
    starting = asyncio.ensure_future(generation.start())
    await asyncio.sleep(0)
    assert dispatch.assigned == ["r-0"]
    generation.abort([1, 2])
    await starting
    assert dispatch.cancelled == [("r-1", 1), ("r-2", 2)] and not ended
    [batch] = [found async for found in once(generation)]
    assert [(index, step.finish) for index, step in batch] == [(1, Finish(Reason.ABORT)), (2, Finish(Reason.ABORT))]
    generation.abandon()
    assert ended == ["r"]


async def test_workers_are_told_of_an_abort_once() -> None:
    dispatch = Places()
    generation = generation_of(dispatch, 2, n=2)
    await generation.start()
    generation.on_tokens(Delivery(3, (1, 1, 1), FinishReason.LENGTH))
    generation.abort([1, 3])
    generation.abort([1])
    assert [name for name, _ in dispatch.cancelled] == ["r-0"], "neither what has ended, nor what was aborted before"
    [batch] = [found async for found in once(generation)]
    assert [(index, step.finish) for index, step in batch] == [(3, Finish(Reason.LENGTH)), (1, Finish(Reason.ABORT))]


async def once(generation: Generation) -> AsyncIterator[Batch]:
    """The first batch alone."""
    async for batch in generation.batches():
        yield batch
        return
