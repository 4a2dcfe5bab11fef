"""What clients see when a worker is lost in the middle of their answer: nothing, or a clear error."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.routing.choice_record import MOST_UNSENT
from protocol.messages_gateway import Role
from runtime.session import SessionLost
from testkit.fake_worker import Behaviour, FakeWorker
from tests.gateway.conftest import Setting, choices_of, chunks_of, running, wait_until
from tests.gateway.folders import END, byte_tokenizer, piece_tokenizer, write_folder

PIECES = piece_tokenizer()


async def lose(worker: FakeWorker) -> None:
    """Its process is gone, and its connection with it."""
    await worker.stop()


async def ask_and_lose(setting: Setting, victim: FakeWorker, after: int, prompt: Any = "hello", **fields: Any) -> Any:
    """Asks; the worker dies once it has sent `after` tokens of each choice."""
    asking = asyncio.create_task(setting.complete(prompt, **fields))
    await victim.until(lambda: bool(victim.assigned))
    records = setting.gateway.control.dispatch.requests
    request_id = victim.assigned[-1].request_id
    num_choices = victim.assigned[-1].num_choices

    def has_sent() -> bool:
        record = records.find(request_id)
        return record is not None and [len(each.token_ids) for each in record.choices] == [after] * num_choices

    await wait_until(has_sent)
    await lose(victim)
    return await asking


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("stream", [False, True])
async def test_nobody_notices_a_lost_worker(setting: Setting, stream: bool, after: int) -> None:
    fields: dict[str, Any] = {"n": 2, "max_tokens": 9, "stream": stream, "return_token_ids": True}
    good = await setting.add(Role.UNIFIED, "u1")
    undisturbed = await setting.complete("hello", **fields)
    assert undisturbed.status_code == 200 and len(good.assigned) == 1
    victim = await setting.add(Role.UNIFIED, "u2", behaviour=Behaviour(stop_after=after))  # whose turn is the second
    answer = await ask_and_lose(setting, victim, after, **fields)
    assert answer.status_code == 200
    retries = [(each.attempt, each.first_choice, each.num_choices, each.num_replayed) for each in good.assigned[1:]]
    assert retries == ([(1, 0, 1, after), (2, 1, 1, after)] if after else [(1, 0, 2, 0)])
    if stream:
        assert answer.text.endswith("data: [DONE]\n\n")
        assert choices_of(answer.text) == choices_of(undisturbed.text)
    else:
        assert answer.json()["choices"] == undisturbed.json()["choices"]
        assert answer.json()["usage"] == undisturbed.json()["usage"], "the replayed outputs are no part of the prompt"
    metrics = (await setting.client.get("/metrics")).text
    assert f'baton_request_retries_total{{model_name="story",reason="worker_lost"}} {len(retries)}.0' in metrics
    assert 'baton_workers_lost_total{model_name="story"} 1.0' in metrics
    assert setting.gateway.control.dispatch.loads == {}


SPELT = Behaviour(script=lambda assign, choice: [*b"abcab", END, *b"cdefgh"])
STOPS = [  # stop, min_tokens, the text of the answer
    ("ab", 4, "abc"),  # complete within min_tokens, and again behind
    ("bc", 4, "abcabcdefgh"),  # complete within min_tokens only: later, END stands within it
    ("bca", 4, "a"),  # begun within min_tokens
    ("<|end|>", 0, "abcab"),
    ("ab<|end|>c", 6, "abc"),
    ("<|end|>", 7, "abcabcdefgh"),
]


def texts_of(answer: Any, *, stream: bool) -> list[str]:
    """The text of each of two choices."""
    assert answer.status_code == 200, answer.text
    if not stream:
        return [choice["text"] for choice in answer.json()["choices"]]
    choices = choices_of(answer.text)
    return ["".join(piece for piece, _, _ in choices[index]) for index in range(2)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("stop", "min_tokens", "text"), STOPS)
async def test_stop_strings_are_found_in_text_of_two_workers(
    tmp_path: Path, stop: str, min_tokens: int, text: str, stream: bool
) -> None:
    fields: dict[str, Any] = {"stop": stop, "min_tokens": min_tokens, "n": 2, "max_tokens": 12, "stream": stream}
    folder = write_folder(tmp_path, byte_tokenizer())
    async with running(folder) as setting:
        worker = await setting.add(Role.UNIFIED, "u1")
        for after in (1, 2, 3):
            worker.behaviour = replace(SPELT, preempt_after=after)
            assert texts_of(await setting.complete("hello", **fields), stream=stream) == [text, text]
            assert worker.assigned[-1].num_replayed == after, "it has begun again"

    async with running(folder) as setting:
        victim = await setting.add(Role.UNIFIED, "u1", behaviour=replace(SPELT, stop_after=3))
        good = await setting.add(Role.UNIFIED, "u2", behaviour=SPELT)
        assert texts_of(await ask_and_lose(setting, victim, 3, **fields), stream=stream) == [text, text]
        assert good.assigned[-1].num_replayed == 3, "it goes on where the first worker was lost"


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_the_space_before_the_first_word_survives_the_loss(tmp_path: Path, after: int) -> None:
    wor, ld, he = (PIECES.token_to_id(token) or 0 for token in ("▁wor", "ld", "▁he"))
    way = Behaviour(script=lambda assign, choice: [wor, ld, wor] if choice else [ld, wor, ld])
    async with running(write_folder(tmp_path, PIECES)) as setting:
        victim = await setting.add(Role.UNIFIED, "u1", behaviour=replace(way, stop_after=after))
        await setting.add(Role.UNIFIED, "u2", behaviour=way)
        answer = await ask_and_lose(setting, victim, after, prompt=[1, he], n=2, max_tokens=3)
    assert [choice["text"] for choice in answer.json()["choices"]] == ["ld world", " world wor"]


@pytest.mark.parametrize("options", [{"max_attempts": 1}, {}], ids=["one attempt", "no wait"])
@pytest.mark.parametrize("after", [0, 3])
async def test_who_cannot_go_on_gets_a_clear_error(folder: Path, options: dict[str, Any], after: int) -> None:
    async with running(folder, retry_wait_s=0.0, **options) as setting:
        victim = await setting.add(Role.UNIFIED, "u0", behaviour=Behaviour(stop_after=after))
        answer = await ask_and_lose(setting, victim, after, max_tokens=9, stream=True)
        if after:
            assert answer.status_code == 200 and "[DONE]" not in answer.text
            *chunks, error = chunks_of(answer.text)
            assert len(chunks) == after
        else:
            error = answer.json()
            assert answer.status_code == 503 and answer.headers["retry-after"]
        assert error["error"]["type"] == "service_unavailable" and error["error"]["code"] == "worker_lost"
        assert "'u0' is lost" in error["error"]["message"]
        assert len(setting.gateway.control.dispatch.requests) == 0 and setting.gateway.control.dispatch.loads == {}
        refused = await setting.complete("x")
        assert refused.status_code == 503 and refused.headers["retry-after"]


GRAMMAR: dict[str, Any] = {"guided_regex": "[a-z ]{1,99}"}


async def lose_two(setting: Setting, *, further: int = 0, **fields: Any) -> Any:
    """The worker that has the request ends, and so does the next one, `further` tokens later."""
    victim = await setting.add(Role.UNIFIED, "u1", behaviour=Behaviour(stop_after=2))
    asking = asyncio.create_task(setting.complete("hello", max_tokens=40, **fields))
    await victim.until(lambda: bool(victim.assigned))
    records = setting.gateway.control.dispatch.requests

    def has(num_tokens: int) -> bool:
        record = records.find(victim.assigned[0].request_id)
        return record is not None and [len(choice.token_ids) for choice in record.choices] == [num_tokens]

    await wait_until(lambda: has(2))
    second = await setting.add(Role.UNIFIED, "u2", behaviour=Behaviour(stop_after=2 + further))
    await lose(victim)
    await second.until(lambda: bool(second.assigned))
    await wait_until(lambda: has(2 + further))
    third = await setting.add(Role.UNIFIED, "u3")
    await lose(second)
    return await asking, third


async def test_a_grammar_whose_two_workers_have_ended_gets_no_third_and_is_refused_from_then_on(
    setting: Setting,
) -> None:
    answer, third = await lose_two(setting, **GRAMMAR)
    assert answer.status_code == 400 and not third.assigned
    told = answer.json()["error"]["message"]
    assert told == "2 workers have ended while they followed its grammar, so it is not tried again"
    again = await setting.complete("hello", **GRAMMAR)
    assert again.status_code == 400 and not third.assigned
    assert again.json()["error"]["message"].startswith("guided_regex: workers have ended while they followed this")
    other = await setting.complete("hello", guided_regex="[a-z ]{1,98}")
    assert other.status_code == 200 and len(third.assigned) == 1


async def test_a_grammar_that_an_answer_has_followed_is_not_blamed_for_workers_that_end(setting: Setting) -> None:
    """Others share its workers, and may have ended them."""
    before = await setting.add(Role.UNIFIED, "u0")
    ended = await setting.complete("hello", max_tokens=9, stop_token_ids=[*range(256)], **GRAMMAR)
    assert ended.json()["choices"][0]["finish_reason"] == "stop"
    await lose(before)
    answer, third = await lose_two(setting, **GRAMMAR)
    assert answer.status_code == 200 and len(third.assigned) == 1


@pytest.mark.parametrize("further", [16, 17])
async def test_a_second_worker_that_ends_further_on_does_not_blame_the_grammar(setting: Setting, further: int) -> None:
    """Both drew the same tokens, so the second one was past those that could have ended the first."""
    answer, third = await lose_two(setting, further=further, **GRAMMAR)
    assert (answer.status_code, len(third.assigned)) == ((400, 0) if further <= MOST_UNSENT else (200, 1))


async def test_workers_that_only_stood_still_are_no_fault_of_a_grammar(setting: Setting) -> None:
    """They keep their connections."""
    worker = await setting.add(Role.UNIFIED, "u1", behaviour=Behaviour(stop_after=2))
    asking = asyncio.create_task(setting.complete("hello", max_tokens=9, **GRAMMAR))
    for name, behaviour in (("u2", Behaviour(stop_after=2)), ("u3", Behaviour())):
        await worker.until(lambda of=worker: bool(of.assigned))  # type: ignore[misc]
        other = await setting.add(Role.UNIFIED, name, behaviour=behaviour)
        [member] = [one for one in setting.gateway.control.membership.members if one.key.worker_id == worker.worker_id]
        setting.gateway.control._lose(member.key, SessionLost("was silent for 2 s"))
        worker = other
    assert (await asking).status_code == 200 and len(worker.assigned) == 1
