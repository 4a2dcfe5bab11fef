"""A client request's hold on workers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from gateway.choice_text import Detokenizer
from gateway.dispatch import Dispatch
from gateway.generation import ABORT, TURN_TOKENS, Batch, Generation
from gateway.metrics import Metrics
from gateway.requests import Delivery, Listener, RequestRecord
from gateway.times import Times
from gateway.translate import Prompt
from protocol.errors import Unavailable
from protocol.messages_gateway import FinishReason, SamplingParams
from runtime.clock import MonotonicClock


def unmeasured() -> Times:
    return Times(MonotonicClock(), Metrics("story"), received_at=0.0)


class OnePlace:
    """A dispatch that takes one prompt and no more."""

    def __init__(self) -> None:
        self.cancelled: list[tuple[str, int]] = []
        self._is_full = False

    def assign(self, request_id: str, prompt: Prompt, listener: Listener, *_: Any) -> RequestRecord:
        if self._is_full:
            raise Unavailable("full")
        self._is_full = True
        return RequestRecord(request_id, prompt, [], listener)

    def cancel(self, request_id: str, choice: int = -1) -> None:
        self.cancelled.append((request_id, choice))


async def test_all_prompts_are_assigned_or_none() -> None:
    dispatch = OnePlace()
    prompt = Prompt((1, 2), SamplingParams(max_tokens=3), 1)
    generation = Generation("r", [prompt, prompt], lambda *_: Detokenizer(), cast(Dispatch, dispatch), unmeasured())
    with pytest.raises(Unavailable, match="full"):
        await generation.start()
    assert dispatch.cancelled == [("r-0", -1)]


class LosesTheFirst:
    """A dispatch that finds out, while it assigns the second prompt, that the first one's worker is gone."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self._listeners: list[Listener] = []

    def assign(self, request_id: str, prompt: Prompt, listener: Listener, *_: Any) -> RequestRecord:
        for each in self._listeners:
            each.on_failed(Unavailable("gone"))
        self._listeners.append(listener)
        return RequestRecord(request_id, prompt, [], listener)

    def cancel(self, request_id: str, _choice: int = -1) -> None:
        self.cancelled.append(request_id)


async def test_a_prompt_that_fails_while_others_are_assigned_ends_all() -> None:
    dispatch = LosesTheFirst()
    prompt = Prompt((1, 2), SamplingParams(max_tokens=3), 1)
    generation = Generation("r", [prompt, prompt], lambda *_: Detokenizer(), cast(Dispatch, dispatch), unmeasured())
    with pytest.raises(Unavailable, match="gone"):
        await generation.start()
    assert "r-1" in dispatch.cancelled


class Counts:
    """A dispatch that takes every prompt, and notes when."""

    def __init__(self) -> None:
        self.assigned: list[str] = []
        self.cancelled: list[str] = []

    def assign(self, request_id: str, prompt: Prompt, listener: Listener, *_: Any) -> RequestRecord:
        self.assigned.append(request_id)
        return RequestRecord(request_id, prompt, [], listener)

    def cancel(self, request_id: str, _choice: int = -1) -> None:
        self.cancelled.append(request_id)


class Broken(Detokenizer):
    """A fault of the gateway's own."""

    def feed(self, token_id: int) -> str:
        raise RuntimeError(token_id)


@pytest.mark.parametrize("ends", ["assigned", "lost", "fault", "stopped"])
async def test_others_get_turns_while_many_long_prompts_are_assigned(ends: str) -> None:
    dispatch = Counts()
    prompt = Prompt((1,) * (TURN_TOKENS // 2), SamplingParams(max_tokens=3), 1)
    generation = Generation("r", [prompt] * 6, lambda *_: Broken(), cast(Dispatch, dispatch), unmeasured())
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
        assert set(dispatch.cancelled) == set(dispatch.assigned) and len(dispatch.assigned) in (4, 5)
        assert starting.cancelled() or isinstance(starting.exception(), Unavailable | RuntimeError)


async def test_prompts_that_are_aborted_before_they_are_assigned_are_cancelled() -> None:
    dispatch, ended = Counts(), list[str]()
    prompt = Prompt((1,) * TURN_TOKENS, SamplingParams(max_tokens=3), 1)
    generation = Generation("r", [prompt] * 3, lambda *_: Detokenizer(), cast(Dispatch, dispatch), unmeasured())
    generation.on_end = lambda: ended.append("r")
    starting = asyncio.ensure_future(generation.start())
    await asyncio.sleep(0)
    assert dispatch.assigned == ["r-0"]
    generation.abort([1, 2])
    await starting
    assert dispatch.cancelled == ["r-1", "r-2"] and not ended
    [batch] = [found async for found in once(generation)]
    assert [(index, piece.finish_reason) for index, piece in batch] == [(1, ABORT), (2, ABORT)]
    generation.abandon()
    assert ended == ["r"]


async def test_workers_are_told_of_an_abort_once() -> None:
    dispatch = Counts()
    prompt = Prompt((1, 2), SamplingParams(max_tokens=3), 2)
    generation = Generation("r", [prompt] * 2, lambda *_: Detokenizer(), cast(Dispatch, dispatch), unmeasured())
    await generation.start()
    generation.on_tokens(Delivery(3, (1, 1, 1), FinishReason.LENGTH))
    generation.abort([1, 3])
    generation.abort([1])
    assert dispatch.cancelled == ["r-0"], "neither what has ended, nor what was aborted before"
    [batch] = [found async for found in once(generation)]
    assert [(index, piece.finish_reason) for index, piece in batch] == [(3, "length"), (1, ABORT)]


async def once(generation: Generation) -> AsyncIterator[Batch]:
    """The first batch alone."""
    async for batch in generation.batches():
        yield batch
        return


async def test_one_that_does_not_start_has_ended() -> None:
    ended = list[str]()
    prompt = Prompt((1, 2), SamplingParams(max_tokens=3), 1)
    dispatch = cast(Dispatch, OnePlace())
    generation = Generation("r", [prompt, prompt], lambda *_: Detokenizer(), dispatch, unmeasured())
    generation.on_end = lambda: ended.append("r")
    with pytest.raises(Unavailable, match="full"):
        await generation.start()
    assert ended == ["r"]
