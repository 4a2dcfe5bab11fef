"""Sends each request to a gateway of this process and keeps what it answers, without what differs from run to run.

A fake worker sends a step when the gateway has dealt with the one before, so that a stream has the same events each
time. Whether it has, its membership tells: a heartbeat behind each step bears its number.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from protocol.messages_gateway import Assign, Heartbeat, Role
from testkit.fake_worker import STATS, Behaviour, FakeWorker
from tests.gateway.conftest import Setting, exchange, running
from tests.gateway.golden.asks import Ask, all_asks

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDER: Final = ROOT / "models/story"
KEPT: Final = Path(__file__).with_name("answers.jsonl")
WITH_TOOLS: Final = Path(__file__).with_name("tools.jinja")  # a chat template
EOS: Final = 2
TURNS: Final = 50  # of the loop, between a step that was read and its event, which the client has then
# Ids of the bundled model: words, parts of characters, special tokens among them.
TOLD: Final = (
    'Once upon a time, a caf\u00e9 \U0001f600 had a fox.\nThe "fox" said:\t<b>\u20ac5 & a'
    ' {"a": 1}</b> \U0001f468\u200d\U0001f469 end'
)
# What the fleet "calls" says: thoughts, text and calls, then one that is cut by EOS.
CALLING: Final = (
    "<think>\nThey ask me to add.\n</think>\n\nI add.\n"
    '<tool_call>\n{"name": "add", "arguments": {"a": 17, "b": [2, "caf\u00e9 \U0001f600"]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look_up", "arguments": {"word": "fox"}}\n</tool_call>',
    '<tool_call>\n{"name": "unknown"}\n</tool_call> <tool_call>\n{"name": "add", "arguments": {"a": "</tool_call>',
)
VARIES: Final = (
    (re.compile(rb"call_[0-9a-f]{24}"), b"call_ID"),
    (re.compile(rb"\b(cmpl|chatcmpl|gen)-[0-9a-f]{32}"), rb"\1-ID"),
    (re.compile(re.escape(str(ROOT)).encode()), b"ROOT"),
    (re.compile(rb'"created": ?\d+'), b'"created":0'),
    (re.compile(rb"served for \d+ s"), b"served for 0 s"),
    (re.compile(rb'"at_ms": ?[-0-9.e]+'), b'"at_ms":0'),
    (re.compile(rb'"(e2e_latency|[a-z_]+_(?:time|ts|s))": ?[-0-9.e]+'), rb'"\1":0'),
)
DROPPED: Final = ("date", "x-request-id", "content-length", "transfer-encoding")  # they follow from the rest, or vary


class Story:
    """The tokens that fake workers send: a text's, from a place on that depends on prompt and choice, and then EOS."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def __call__(self, assign: Assign, choice: int) -> list[int]:
        start = (sum(assign.prompt_ids) + 3 * choice) % 11
        return [*self._ids[start:], 0, 1, EOS, 300, 301, EOS, *self._ids, *self._ids]


class Calling:
    """The tokens of CALLING, each choice another text."""

    def __init__(self, texts: list[list[int]]) -> None:
        self._texts = texts

    def __call__(self, assign: Assign, choice: int) -> list[int]:
        return [*self._texts[choice % len(self._texts)], EOS]


class Fleet:
    """A gateway of the bundled model with one worker at most, which waits for it after each step."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._worker: FakeWorker | None = None
        self._num_steps = 0

    async def add_worker(self, fail_after: int | None, *, calls: bool) -> None:
        """A unified worker. It fails each request that has so many tokens. `calls`: it says CALLING."""
        tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
        texts = CALLING if calls else (TOLD,)
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        script = Calling(ids) if calls else Story(ids[0])
        behaviour = Behaviour(script, fail_after=fail_after, after_step=self._dealt_with, cached=4)
        shape = {"vocab_size": 1024, "context_length": 2048, "max_total_tokens": 8192}
        self._worker = await self.setting.add(Role.UNIFIED, "worker-0", behaviour=behaviour, **shape)

    async def _dealt_with(self) -> None:
        """Waits until the gateway has read what the worker has sent."""
        assert self._worker is not None
        self._num_steps += 1
        self._worker.stats = replace(STATS, num_launches=self._num_steps)
        await self._worker.send(Heartbeat(self._worker.worker_id, self._worker.instance, self._worker.stats))
        membership = self.setting.gateway.control.membership
        while [member.stats.num_launches for member in membership.members] != [self._num_steps]:  # noqa: ASYNC110  # it has no event
            await asyncio.sleep(0)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def answer(self, ask: Ask) -> dict[str, Any]:
        """What is answered: the status, the headers, the body. Of a connection that ends without an answer: {}."""
        return kept(await exchange(self.setting, *ask.parts))


@asynccontextmanager
async def fleet(name: str) -> AsyncIterator[Fleet]:
    """The gateway and the workers that the name stands for."""
    calls = name == "calls"
    async with running(FOLDER, chat_template=str(WITH_TOOLS) if calls else None) as setting:
        found = Fleet(setting)
        if name != "none":
            await found.add_worker({"fails at once": 0, "fails in the middle": 3}.get(name), calls=calls)
        yield found


def kept(raw: bytes) -> dict[str, Any]:
    """The parts of an answer that are the same each time. Of what follows `100 Continue`, if that comes first."""
    head, _, body = raw.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        return kept(body)
    if not head:
        return {}

    status, *lines = head.decode("latin-1").split("\r\n")
    headers = [line.partition(": ")[::2] for line in lines]
    if ("transfer-encoding", "chunked") in headers:
        body = b"".join(_chunks(body))
    for pattern, same in VARIES:
        body = pattern.sub(same, body)
    shown = {name: value for name, value in headers if name not in DROPPED}
    return {"status": status, "headers": shown, "body": body.decode("utf-8", "backslashreplace")}


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, rest = body.partition(b"\r\n")
        num_bytes = int(size, 16)
        yield rest[:num_bytes]
        body = rest[num_bytes + 2 :]


async def answers_of(name: str) -> dict[str, dict[str, Any]]:
    """What a fleet answers to its requests, by their names. One comes after the other: an event may hold the tokens of
    two steps if the gateway is busy."""
    async with fleet(name) as serving:
        return {ask.name: await serving.answer(ask) for ask in all_asks() if ask.fleet == name}


def read() -> dict[str, dict[str, Any]]:
    """The kept answers, by the names of their requests."""
    rows = map(json.loads, KEPT.read_text(encoding="utf-8").splitlines())
    return {row.pop("ask"): row for row in rows}


def write(answers: Mapping[str, dict[str, Any]]) -> None:
    """Keeps these answers."""
    rows = [json.dumps({"ask": name, **answer}, ensure_ascii=False) for name, answer in answers.items()]
    KEPT.write_text("\n".join(rows) + "\n", encoding="utf-8")
