"""A whole answer is the fold of its stream: in each dialect, however its tokens were cut into deliveries."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from gateway.dialects.openai.routes import CHATS, COMPLETIONS, openai_call
from gateway.dialects.sglang.routes import native_call
from gateway.generation.generation import Generation
from gateway.generation.tallies import Metrics
from gateway.generation.times import Times
from gateway.generation.translate import PreparedPrompt, Translator
from gateway.routing.dispatch import Dispatch
from gateway.routing.requests import Delivery, Listener, RequestRecord
from gateway.serving.long_answers import LongAnswers
from gateway.serving.respond import Call
from gateway.serving.service import Service
from gateway.text.chat_template import ChatTemplates, read_template_sources
from gateway.text.model_folder import read_model_folder
from gateway.text.tokenizer import load_tokenizer
from gateway.words.limits import Limits
from protocol.logprobs import TokenLogprob, of_tokens
from protocol.messages_gateway import FinishReason, PromptLogprobs
from runtime.clock import MonotonicClock
from runtime.settings import HttpLimits
from testkit.fake_worker import prompt_scores
from tests.gateway.folders import BOS, END, EOS, byte_tokenizer, write_folder


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """What answers need of a gateway."""
    path = write_folder(tmp_path_factory.mktemp("folder") / "model", byte_tokenizer())
    tokenizer = load_tokenizer(path)
    texts = {} if tokenizer is None else tokenizer.special.texts
    translator = Translator(read_model_folder(path), tokenizer, ChatTemplates(read_template_sources(path), texts))
    names = SimpleNamespace(first="story")
    return cast(Service, SimpleNamespace(translator=translator, names=names, long_answers=LongAnswers()))


LIMITS = Limits(context_length=512, vocab_size=300)
ABORT = "abort"
ENDS = (FinishReason.STOP, FinishReason.LENGTH, ABORT)
Fields = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """What a worker makes of one choice. The cuts are where its deliveries end: of a whole answer, of a stream."""

    token_ids: tuple[int, ...]
    end: str
    cuts: tuple[frozenset[int], frozenset[int]]


class Assigned:
    """A dispatch whose workers have told the scores of each prompt at once."""

    def assign(self, request_id: str, prompt: PreparedPrompt, listener: Listener, *_: Any) -> RequestRecord:
        record = RequestRecord(request_id, prompt, [], listener)
        asked = prompt.prompt_logprobs
        if asked is not None and record.prompt_part is not None:
            scores = prompt_scores(prompt.token_ids[asked.start :], asked.start, asked)
            record.prompt_part.accept(PromptLogprobs(request_id, 0, asked.start, of_tokens(scores)))
        return record

    def cancel(self, request_id: str, choice: int = -1) -> None:
        pass


def deliveries(index: int, choice: Choice, cuts: frozenset[int], num_top: int | None) -> list[Delivery]:
    """All tokens of a choice, cut at these places."""
    num_tokens = len(choice.token_ids)
    scores = tuple(
        TokenLogprob(-place / 4, 1 + place, tuple((other, -float(other)) for other in range(num_top or 0)))
        for place in range(num_tokens)
    )
    found = []
    for start, end in pairwise([0, *sorted(cut for cut in cuts if cut < num_tokens), num_tokens]):
        finish = None if end < num_tokens or choice.end == ABORT else FinishReason(choice.end)
        told = () if num_top is None else scores[start:end]
        found.append(Delivery(index, choice.token_ids[start:end], finish, told))
    return found


async def body_of(
    service: Service, call: Call, choices: Sequence[Choice], of_stream: bool, turns: Sequence[bool]
) -> str:
    """The body of the response to a call. `turns`: whether the answer is written between two deliveries."""
    asks, translator = call.asks, service.translator
    prompts = translator.all_prompts(asks, LIMITS, [""] * len(asks))
    times = Times(MonotonicClock(), Metrics("story"), received_at=0.0)
    dispatch = cast(Dispatch, Assigned())
    generation = Generation(call.response_id, prompts, translator.new_detokenizer, dispatch, times)
    await generation.start()

    bodies, never = list[bytes](), asyncio.Event()

    async def receive() -> Message:
        await never.wait()
        return {}

    async def send(message: Message) -> None:
        bodies.append(message.get("body", b""))

    answering = asyncio.create_task(call.answer(service, generation)({"type": "http"}, receive, send))
    num_top = [ask.scores for ask in asks for _ in range(len(ask.prompts) * ask.num_choices)]
    coming = [deliveries(index, choice, choice.cuts[of_stream], num_top[index]) for index, choice in enumerate(choices)]
    for place in range(max(map(len, coming))):
        for index, own in enumerate(coming):
            if place < len(own):
                generation.on_tokens(own[place])
            if place == len(own) - 1 and choices[index].end == ABORT:
                generation.abort([index])
            if turns[(place + index) % len(turns)]:
                await asyncio.sleep(0)
    await answering
    return b"".join(bodies).decode()


# ---- what clients make of a stream ----


def events_of(stream: str) -> list[Fields]:
    *events, done, empty = stream.split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def folded_openai(stream: str, num_choices: int) -> Fields:
    """The choices of a stream and its usage, as a client joins them."""
    *events, last = events_of(stream)
    assert not last["choices"] and all(event["usage"] is None for event in events)
    choices: list[Fields] = [{"index": index, "text": "", "logprobs": {}} for index in range(num_choices)]
    for [told] in (event["choices"] for event in events):
        own = choices[told["index"]]
        assert "finish_reason" not in own or own["finish_reason"] is None, "nothing follows the end"
        own["text"] += told["delta"].get("content", "") if "delta" in told else told["text"]
        own["finish_reason"] = told["finish_reason"]
        own.setdefault("token_ids", []).extend(told.get("token_ids", []))
        for name, scores in (told["logprobs"] or {}).items():
            if scores:
                own["logprobs"].setdefault(name, []).extend(scores)
    return {"choices": choices, "usage": last["usage"]}


def plain_openai(body: str) -> Fields:
    """The same of a whole answer."""
    whole = json.loads(body)
    choices = [
        {
            "index": told["index"],
            "text": told["message"]["content"] if "message" in told else told["text"],
            "logprobs": {name: scores for name, scores in (told["logprobs"] or {}).items() if scores},
            "finish_reason": told["finish_reason"],
            "token_ids": told.get("token_ids", []),
        }
        for told in whole["choices"]
    ]
    return {"choices": choices, "usage": whole["usage"]}


def folded_native(stream: str, num_choices: int) -> list[Fields]:
    """The last event of each choice, which has all of it."""
    last = {event.get("index", 0): event for event in events_of(stream)}
    return [plain(last[index]) for index in range(num_choices)]


def plain_native(body: str) -> list[Fields]:
    whole = json.loads(body)
    return [plain(choice) for choice in (whole if isinstance(whole, list) else [whole])]


def plain(choice: Fields) -> Fields:
    """Without what differs from answer to answer."""
    meta = {name: value for name, value in choice["meta_info"].items() if name not in ("id", "e2e_latency")}
    return {"text": choice["text"], "output_ids": choice["output_ids"], "meta_info": meta}


# ---- what is asked for ----

TEXTS = ("ab", "caf\u00e9 b", "<|end|>")
stops = st.lists(st.sampled_from(["b", "ab", "bab", "\u00e9", "a\u00e9b", "<|end|>", "b<|end|>", "\ufffd"]), max_size=3)
token_ids = st.lists(st.sampled_from([*b"aab", 0xC3, 0xA9, 0xE2, BOS, END, EOS]), min_size=1, max_size=9)
cuts = st.frozensets(st.integers(1, 8))
a_choice = st.builds(Choice, token_ids.map(tuple), st.sampled_from(ENDS), st.tuples(cuts, cuts))
turns = st.lists(st.booleans(), min_size=1, max_size=4)
shared = {
    "n": st.integers(1, 2),
    "stop": stops,
    "min_tokens": st.integers(0, 3),
    "skip_special_tokens": st.booleans(),
}
openai = {**shared, "echo": st.booleans(), "return_token_ids": st.booleans(), "max_tokens": st.just(9)}
messages = st.sampled_from(
    [
        [{"role": "user", "content": text}, {"role": role, "content": "hi"}]
        for text in TEXTS
        for role in ("user", "assistant")
    ]
)
completions = st.fixed_dictionaries(
    {
        **openai,
        "prompt": st.sampled_from([TEXTS[0], TEXTS[1], [97, 0xC3], [TEXTS[1], TEXTS[2]]]),
        "logprobs": st.none() | st.integers(0, 2),
    }
)
chats = st.fixed_dictionaries({**openai, "messages": messages, "logprobs": st.booleans()})
natives = st.fixed_dictionaries(
    {
        "sampling_params": st.fixed_dictionaries(
            {
                **{name: shared[name] for name in ("n", "stop", "skip_special_tokens")},
                "min_new_tokens": shared["min_tokens"],
            }
        ),
        "text": st.sampled_from([TEXTS[1], [TEXTS[1]], list(TEXTS[:2])]),
        "return_logprob": st.booleans(),
        "top_logprobs_num": st.integers(0, 2),
        "logprob_start_len": st.sampled_from([-1, 0]),
    }
)


def asked_twice(
    service: Service,
    drawn: st.DataObject,
    body: Fields,
    parse: Callable[..., Call],
    fold: Callable[[str, int], Any],
    read: Callable[[str], Any],
    more: Fields,
) -> tuple[Any, Any]:
    """What clients make of a stream, and of the whole answer to the same request."""
    calls = [parse(json.dumps({**body, **added}).encode(), LIMITS, HttpLimits()) for added in ({}, more)]
    num_choices = sum(len(ask.prompts) * ask.num_choices for ask in calls[0].asks)
    choices = drawn.draw(st.lists(a_choice, min_size=num_choices, max_size=num_choices))
    written = [drawn.draw(turns), drawn.draw(turns)]
    whole = asyncio.run(body_of(service, calls[0], choices, False, written[0]))
    stream = asyncio.run(body_of(service, calls[1], choices, True, written[1]))
    return fold(stream, num_choices), read(whole)


OF_STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@given(drawn=st.data(), body=completions)
def test_a_completion(service: Service, drawn: st.DataObject, body: Fields) -> None:
    folded, whole = asked_twice(
        service, drawn, body, partial(openai_call, COMPLETIONS), folded_openai, plain_openai, OF_STREAM
    )
    assert folded == whole


@given(drawn=st.data(), body=chats)
def test_a_chat(service: Service, drawn: st.DataObject, body: Fields) -> None:
    folded, whole = asked_twice(
        service, drawn, body, partial(openai_call, CHATS), folded_openai, plain_openai, OF_STREAM
    )
    assert folded == whole


@given(drawn=st.data(), body=natives)
def test_a_native_answer(service: Service, drawn: st.DataObject, body: Fields) -> None:
    folded, whole = asked_twice(service, drawn, body, native_call, folded_native, plain_native, {"stream": True})
    assert folded == whole
