"""Answers that begin with their prompt, or tell its log-probabilities, from workers that are late or lost."""

import asyncio
from typing import Any

import pytest

from gateway import openai_answer
from protocol.logprobs import Logprobs, PromptLogprobsAsked, TokenLogprob, of_tokens
from protocol.messages_gateway import ChoiceTokens, PromptLogprobs, Role, Tokens
from testkit.fake_worker import Behaviour, FakeWorker, letters, prompt_scores
from tests.gateway.conftest import Setting, chunks_of, wait_until

TEXT = "xyz!"
SCORED: dict[str, Any] = {"max_tokens": 5, "echo": True, "logprobs": 2}


TOPS = [{chr(ord(char) + 1): -place + 0.5, char: -float(place)} for place, char in enumerate(TEXT)]
OF_PROMPT: dict[str, list[Any]] = {  # what `logprobs` tells of the prompt; see prompt_scores
    "tokens": list(TEXT),
    "token_logprobs": [None, -1.0, -2.0, -3.0],
    "top_logprobs": [None, *TOPS[1:]],
    "text_offset": [0, 1, 2, 3],
}


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_long", [False, True])
async def test_a_stream_begins_with_the_prompt(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, is_late: bool, is_long: bool
) -> None:
    if is_long:
        monkeypatch.setattr(openai_answer, "LONG_BATCH", 2)
    await setting.add_pair(Behaviour(prompt_late=is_late))
    [whole] = (await setting.complete(TEXT, **SCORED)).json()["choices"]
    chunks = chunks_of((await setting.complete(TEXT, stream=True, **SCORED)).text)
    parts = [each for chunk in chunks for each in chunk["choices"]]
    assert (parts[0]["text"], parts[0]["logprobs"]) == (TEXT, OF_PROMPT)
    assert "".join(part["text"] for part in parts) == whole["text"] and parts[-1]["finish_reason"] == "length"
    for name in OF_PROMPT:
        assert [each for part in parts for each in part["logprobs"][name]] == whole["logprobs"][name]


@pytest.mark.parametrize(
    "behaviour",
    [Behaviour(prompt_late=True, burst=2), Behaviour(prompt_late=True, twice=True), Behaviour(first_token_late=True)],
    ids=["late", "late and twice", "first token late"],
)
async def test_the_answer_waits_for_its_prompt(setting: Setting, behaviour: Behaviour) -> None:
    await setting.add_pair()
    [right] = (await setting.complete(TEXT, n=1, **SCORED)).json()["choices"]
    setting.workers[1].behaviour = behaviour
    for choice in (await setting.complete(TEXT, n=2, **SCORED)).json()["choices"]:
        assert choice["logprobs"]["token_logprobs"] == right["logprobs"]["token_logprobs"]
        assert choice["text"][:4] == TEXT and choice["finish_reason"] == "length"


@pytest.mark.parametrize(("until", "missing"), [(0, 1), (2, 2), (3, 3), (None, None)])
@pytest.mark.parametrize("who", [Role.PREFILL, Role.DECODE])
async def test_a_worker_is_lost_with_a_part_of_the_prompt(
    setting: Setting, who: Role, until: int | None, missing: int | None
) -> None:
    """Four tokens of the answer have come. They count only if the prompt's part is whole."""
    decode = await setting.add_pair()
    [right] = (await setting.complete(TEXT, **SCORED)).json()["choices"]
    decode.behaviour = Behaviour(prompt_piece=1, prompt_until=until, stop_after=4)
    asking = asyncio.create_task(setting.complete(TEXT, **SCORED))
    await decode.until(lambda: len(decode.assigned) == 2)
    request_id = decode.assigned[1].request_id

    def has_come() -> bool:
        record = setting.gateway.control.dispatch.requests.find(request_id)
        if record is None:
            return False
        [attempt] = record.attempts.values()
        if record.prompt_missing is None:
            return (missing, len(record.choices[0].token_ids)) == (None, 4)
        return (record.prompt_missing.start, len(attempt.held)) == (missing, 5)  # the first token comes twice

    await wait_until(has_come)
    if who is Role.DECODE:
        lost, again = decode, await setting.add(Role.DECODE, prefill=decode.prefill)
    else:
        assert decode.prefill is not None
        lost, again = decode.prefill, decode
        decode.prefill, decode.behaviour = await setting.add(Role.PREFILL), Behaviour()
    await lost.stop()
    if who is Role.PREFILL and missing is None:
        rest = ChoiceTokens(request_id, 0, 0, 4, (letters(decode.assigned[1], 0)[4],), "length", last_score(decode))
        await decode.send(Tokens((rest,)))
    [choice] = (await asking).json()["choices"]
    assert choice == right
    retries = [each for each in again.assigned if each.attempt]
    if who is Role.PREFILL and missing is None:
        assert not retries, "decode goes on without prefill"
        return
    [retry] = retries
    assert retry.num_replayed == (4 if missing is None else 0)
    assert retry.prompt_logprobs == (None if missing is None else PromptLogprobsAsked(2, missing))
    assert setting.gateway.control.dispatch.loads == {}


def last_score(worker: FakeWorker) -> Logprobs:
    """The log-probabilities of the last token of its last request."""
    token = letters(worker.assigned[-1], 0)[-1]
    return of_tokens((TokenLogprob(-0.5, 1, tuple((token + place, -0.5 - place) for place in range(2))),))


async def test_a_choice_that_gives_way_before_its_prompt_has_come(setting: Setting) -> None:
    """On one connection: of a pair's two, either may be read first."""
    decode = await setting.add(Role.UNIFIED, "u1", behaviour=Behaviour(prompt_until=2, retract_after=2))
    [choice] = (await setting.complete(TEXT, **SCORED)).json()["choices"]
    assert choice["logprobs"]["token_logprobs"][:4] == [None, -1.0, -2.0, -3.0]
    assert [each.prompt_logprobs for each in decode.assigned] == [PromptLogprobsAsked(2), PromptLogprobsAsked(2, 2)]


async def test_nonsense_fails_the_request_alone(setting: Setting) -> None:
    decode = await setting.add_pair(Behaviour(prompt_until=2, stop_after=0))
    asking = asyncio.create_task(setting.complete(TEXT, **SCORED))
    await decode.until(lambda: bool(decode.assigned))
    [assign] = decode.assigned
    assert assign.prompt_logprobs is not None and decode.prefill is not None
    beyond = of_tokens(prompt_scores((1, 2, 3, 4), 1, assign.prompt_logprobs))
    await decode.prefill.send(PromptLogprobs(assign.request_id, 0, 1, beyond))
    answer = await asking
    assert answer.status_code == 500 and "invalid" in answer.json()["error"]["message"]
    decode.behaviour = Behaviour()
    assert (await setting.complete(TEXT, **SCORED)).status_code == 200
