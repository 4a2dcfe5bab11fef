"""Long answers: the bytes of short ones, encoded in parts off the loop, while the client takes them."""

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest
from starlette.types import Message

from gateway.app.app import build_app
from gateway.dialects.openai import score_shapes as logprobs
from gateway.dialects.openai import write as openai_answer
from gateway.dialects.sglang import write as native_answer
from gateway.http.protocol import SCOPE_KEY
from gateway.serving import answering, parts
from gateway.serving.long_answers import STALLED_S, LongAnswers
from testkit.fake_worker import PATIENCE_S, Behaviour
from tests.doubles.clock import VirtualClock
from tests.gateway.conftest import Setting, chunks_of, events, wait_until

SIZES = {"PART_BYTES": 600, "TOKENS": 2, "IDS": 8, "CHARS": 32, "TEXTS": 4, "LONG_BATCH": 1}
BLOCK_BYTES = 700  # two tokens with three likeliest ones, each with its text and bytes, have fewer
PROMPT = list(b"the quick brown fox jumps over the lazy dog")
SCORED: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 3}
CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once upon a time " * 5}]}
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "prompt_logprobs": ("/v1/completions", {"prompt": PROMPT, "n": 3, "prompt_logprobs": 3, "max_tokens": 2}),
    "echo": ("/v1/completions", {"prompt": [PROMPT, PROMPT[3:]], "n": 2, "echo": True, "logprobs": 2}),
    "logprobs": ("/v1/completions", {"prompt": PROMPT, "n": 4, "logprobs": 3, "max_tokens": 60}),
    "text": ("/v1/completions", {"prompt": PROMPT, "n": 8, "max_tokens": 99, "return_token_ids": True}),
    "chat": ("/v1/chat/completions", {**CHAT, "n": 2, "echo": True, "logprobs": True, "top_logprobs": 2}),
    "chat's prompt": ("/v1/chat/completions", {**CHAT, "n": 2, "prompt_logprobs": 1, "max_tokens": 40}),
    "native": ("/generate", {"input_ids": PROMPT, **SCORED, "sampling_params": {"n": 3, "max_new_tokens": 50}}),
    "native list": ("/generate", {"input_ids": [PROMPT, [1]], "return_logprob": [True, False]}),
}
STREAMS = ("echo", "logprobs", "text", "chat", "native", "native list")


@dataclass
class Encoder:
    """orjson, and how much each call has encoded: on this thread, which is the loop's, and on others."""

    on_loop: list[int] = field(default_factory=list)
    off_loop: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._loop, self.Fragment = threading.get_ident(), orjson.Fragment

    def dumps(self, *what: Any, **how: Any) -> bytes:
        found = orjson.dumps(*what, **how)
        (self.on_loop if threading.get_ident() == self._loop else self.off_loop).append(len(found))
        return found


def shrink(monkeypatch: pytest.MonkeyPatch) -> Encoder:
    """Parts and blocks are small from now on, and what is encoded is noted."""
    for module in (parts, answering, logprobs, native_answer, openai_answer):
        for name, size in SIZES.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, size)
    found = Encoder()
    for module in (parts, native_answer, openai_answer):
        monkeypatch.setattr(module, "orjson", found)
    return found


def plain(value: Any) -> Any:
    """Without what differs from answer to answer."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key not in ("id", "created", "e2e_latency")}
    return [plain(each) for each in value] if isinstance(value, list) else value


def joined(text: str) -> dict[int, Any]:
    """What the chunks of a stream tell together, by choice."""
    found: dict[int, Any] = defaultdict(lambda: defaultdict(list))
    for chunk in chunks_of(text):
        for choice in chunk["choices"]:
            own = found[choice["index"]]
            own["text"] += choice.get("delta", {}).get("content") or choice.get("text", "")
            own["token_ids"] += choice.get("token_ids", [])
            own["finish_reason"] = choice["finish_reason"]
            for name, told in (choice["logprobs"] or {}).items():
                own[name] += told or []
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


async def ask(setting: Setting, name: str, **more: Any) -> str:
    path, body = WHOLE[name]
    response = await setting.client.post(path, json={**body, **more})
    assert response.status_code == 200, response.text
    return response.text


@pytest.mark.parametrize("name", WHOLE)
async def test_a_whole_answer_in_parts(setting: Setting, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    await setting.add_pair(Behaviour(burst=3))
    right = json.loads(await ask(setting, name))
    encoder = shrink(monkeypatch)
    assert plain(json.loads(await ask(setting, name))) == plain(right)
    assert max(encoder.on_loop) <= BLOCK_BYTES, "no call on the loop encodes more than a block"
    assert sum(encoder.on_loop) <= SIZES["PART_BYTES"] + 2 * BLOCK_BYTES, "the first part alone"
    assert max(encoder.off_loop) <= BLOCK_BYTES and sum(encoder.off_loop) > len(json.dumps(right)) // 10


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_in_parts(setting: Setting, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    await setting.add_pair(Behaviour(burst=3))
    right = await ask(setting, name, stream=True)
    encoder = shrink(monkeypatch)
    found = await ask(setting, name, stream=True)
    assert max(encoder.on_loop, default=0) <= BLOCK_BYTES and 0 < max(encoder.off_loop) <= BLOCK_BYTES
    if WHOLE[name][0] == "/generate":
        assert last_events(found) == last_events(right)
    else:
        assert joined(found) == joined(right)


async def test_long_events_come_when_the_choice_has_grown_by_a_part(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an event for each token the bytes of a stream would grow with the square of its tokens."""
    long_event, growth, num_tokens = 2000, 8, 200
    monkeypatch.setattr(native_answer, "LONG_EVENT", long_event)
    monkeypatch.setattr(native_answer, "GROWTH", growth)
    await setting.add_pair(Behaviour(pause_s=0.0001))
    body = {"input_ids": [1], "return_logprob": True, "stream": True, "sampling_params": {"max_new_tokens": num_tokens}}
    text = (await setting.client.post("/generate", json=body)).text
    found = [event for event in text.split("\n\n") if event and "[DONE]" not in event]
    counts = [json.loads(event.removeprefix("data: "))["meta_info"]["completion_tokens"] for event in found]
    sizes = [len(event) + 2 for event in found]

    num_short = sum(size <= long_event for size in sizes)
    assert num_short > 20 and counts[: num_short + 1] == list(range(1, num_short + 2)), "one for each token"
    pairs = list(zip(sizes[num_short:-1], sizes[num_short + 1 : -1], strict=False))
    assert len(pairs) > 3 and all(after >= before + before // growth for before, after in pairs)
    assert counts[-1] == num_tokens and sum(sizes) < num_short * long_event + (growth + 2) * sizes[-1]


def last_events(text: str) -> dict[int, Any]:
    """The last event of each choice. Each one before it is a beginning of it."""
    found: dict[int, Any] = {}
    *told, done = events(text)
    assert done is None
    for event in told:
        index = event.get("index", 0)
        before = found.setdefault(index, {"text": "", "output_ids": []})
        assert event["text"].startswith(before["text"])
        assert event["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        found[index] = plain(event)
    return found


async def test_short_answers_have_a_length_and_long_ones_come_in_chunks(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await setting.add_pair()
    short = await setting.complete(max_tokens=5)
    shrink(monkeypatch)
    long = await setting.complete(max_tokens=5, n=9)
    assert int(short.headers["content-length"]) == len(short.content) and "transfer-encoding" not in short.headers
    assert long.headers["transfer-encoding"] == "chunked" and "content-length" not in long.headers
    assert long.headers["content-type"] == short.headers["content-type"] == "application/json"


async def test_what_every_choice_tells_is_encoded_once(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    await setting.add_pair()
    encoder = shrink(monkeypatch)
    sizes = []
    for n in (1, 8):
        encoder.off_loop.clear()
        answer = await setting.complete(PROMPT, prompt_logprobs=3, echo=True, logprobs=3, n=n, max_tokens=1)
        sizes.append((sum(encoder.off_loop), len(answer.content)))
    (encoded, one), (encoded_8, eight) = sizes
    assert eight > 7 * one and encoded_8 < 3 * encoded


# ---- a client that reads slowly, or leaves ----


class Client:
    """One request to the routes, without a connection. `reads`: whether it takes what is sent."""

    def __init__(self, setting: Setting, answers: LongAnswers, path: str, body: dict[str, Any]) -> None:
        app = build_app(replace(setting.gateway.service, long_answers=answers))
        raw, self._asked = json.dumps(body).encode(), False
        self.reads, self.left, self.was_cut = asyncio.Event(), asyncio.Event(), list[str]()
        self.reads.set()
        self.bodies: list[bytes] = []
        self.on_send: Callable[[], object] = lambda: None
        self.status, self.num_sends = 0, 0
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            SCOPE_KEY: (10**6, self._cut),
        }

        async def receive() -> Message:
            if not self._asked:
                self._asked = True
                return {"type": "http.request", "body": raw, "more_body": False}
            await self.left.wait()
            return {"type": "http.disconnect"}

        self.task = asyncio.create_task(app(scope, receive, self._send))

    def _cut(self, reason: str) -> None:
        self.was_cut.append(reason)
        self.left.set()
        self.reads.set()

    async def _send(self, message: Message) -> None:
        self.num_sends += 1
        self.on_send()
        await self.reads.wait()
        self.status = message.get("status", self.status)
        self.bodies.append(message.get("body", b""))


BIG: dict[str, Any] = {"prompt": PROMPT, "n": 8, "prompt_logprobs": 3, "max_tokens": 1}
BIG_NATIVE: dict[str, Any] = {"input_ids": PROMPT, **SCORED, "sampling_params": {"n": 4, "max_new_tokens": 40}}


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", BIG), ("/generate", {**BIG_NATIVE, "stream": True})])
async def test_nothing_is_encoded_before_the_client_has_taken_what_came_before(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    await setting.add_pair()
    shrink(monkeypatch)
    monkeypatch.setattr(parts, "KEPT_BYTES", 0)  # so that all that is sent is encoded for it
    answers = LongAnswers()
    read, taken = 0, parts.next_part

    def counted(blocks: Any) -> bytes:
        nonlocal read
        part = taken(blocks)
        read += len(part)
        return part

    monkeypatch.setattr("gateway.serving.long_answers.next_part", counted)
    client = Client(setting, answers, path, body)
    ahead: list[int] = []
    client.on_send = lambda: ahead.append(read - sum(map(len, client.bodies)))
    await client.task
    assert client.status == 200 and read > 20 * SIZES["PART_BYTES"]
    assert max(ahead) <= SIZES["PART_BYTES"] + BLOCK_BYTES, "one part waits for the client, no more"
    assert answers.num_bytes == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_encoding(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    await setting.add_pair()
    encoder, answers = shrink(monkeypatch), LongAnswers()
    native = {**BIG_NATIVE, "stream": stream}
    whole = Client(setting, answers, "/generate", native)
    await whole.task
    num_all = sum(encoder.off_loop)
    encoder.off_loop.clear()

    client = Client(setting, answers, "/generate", native)
    client.on_send = lambda: client.left.set() if client.num_sends == 4 else None
    await client.task
    assert client.num_sends <= 6 and sum(encoder.off_loop) < num_all // 2
    assert answers.num_bytes == 0 and len(setting.gateway.control.dispatch.requests) == 0


async def test_a_stalled_client_is_preempted_to_another(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    await setting.add_pair()
    shrink(monkeypatch)
    clock, free, most = VirtualClock(), LongAnswers(), list[int]()
    measured = Client(setting, free, "/v1/completions", BIG)
    measured.on_send = lambda: most.append(free.num_bytes)
    await measured.task
    answers = LongAnswers(max(most) * 3 // 2, clock)  # one has room, two do not

    stalled = Client(setting, answers, "/v1/completions", BIG)
    stalled.on_send = lambda: stalled.reads.clear() if stalled.num_sends == 3 else None
    async with asyncio.timeout(PATIENCE_S):
        await wait_until(lambda: stalled.num_sends == 3)
    clock.advance(STALLED_S / 2)
    refused = Client(setting, answers, "/v1/completions", BIG)
    await refused.task
    assert refused.status == 429 and b"hold more than" in refused.bodies[1] and not stalled.was_cut

    clock.advance(STALLED_S / 2)
    served = Client(setting, answers, "/v1/completions", BIG)
    await served.task
    await stalled.task
    assert served.status == 200 and len(json.loads(b"".join(served.bodies))["choices"]) == 8
    assert stalled.was_cut == ["backlog"] and answers.num_bytes == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_grows_beyond_the_bound_fails_alone(setting: Setting, stream: bool) -> None:
    """Its worker has fallen silent, so that it would never end otherwise."""
    await setting.add_pair(Behaviour(stop_after=100))
    answers = LongAnswers(3000)
    body = {"input_ids": [1, 2], "return_logprob": True, "top_logprobs_num": 5, "stream": stream}
    other = Client(setting, answers, "/generate", {**body, "sampling_params": {"max_new_tokens": 5}})
    client = Client(setting, answers, "/generate", {**body, "sampling_params": {"max_new_tokens": 200}})
    await asyncio.gather(client.task, other.task)
    text = b"".join(client.bodies).decode()
    error = json.loads(text) if not stream else events(text)[-1]
    assert error["error"]["code"] == "overloaded" and "log-probabilities" in error["error"]["message"]
    assert client.status == (200 if stream else 429) and other.status == 200
    assert answers.num_bytes == 0 and len(setting.gateway.control.dispatch.requests) == 0
    assert any("overloaded" in line and line.endswith(" 1.0") for line in await setting.metrics())
