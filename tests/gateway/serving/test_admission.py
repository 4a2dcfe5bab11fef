import asyncio
import json
import threading
from pathlib import Path
from typing import cast

import pytest

from gateway.routing.control import Control
from gateway.serving.admission import BODIES, Admission
from gateway.serving.respond import HUGE_BODY_BYTES, LONG_BODY_BYTES
from gateway.text.chat_template import ChatTemplates
from gateway.text.tokenizer import TextTokenizer
from gateway.words.limits import Limits
from gateway.words.request import Conversation
from protocol.errors import Overloaded
from protocol.messages_gateway import Role
from runtime.settings import HttpLimits
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import running, wait_until
from tests.gateway.tool_answers import TOOLS, serving


def test_choices_in_flight_and_entering_are_bounded() -> None:
    in_flight = 3
    admission = Admission(10, 100, lambda: in_flight)
    with admission.entering(4), admission.entering(2):
        admission.check()
        with pytest.raises(Overloaded, match="9 choices are in flight and this request has 2, expected at most 10"):
            admission.entering(2).__enter__()
        with admission.entering(1), pytest.raises(Overloaded):
            admission.check()
    with admission.entering(7):
        pass
    with pytest.raises(RuntimeError), admission.entering(7):
        raise RuntimeError
    in_flight = 0
    with admission.entering(10):
        pass


def test_bytes_being_read_are_bounded() -> None:
    admission = Admission(10, 100, lambda: 0)
    with admission.reading() as read, admission.reading() as other:
        read(100 * BODIES - 1)
        other(1)
        with pytest.raises(Overloaded, match="1600 bytes"):
            other(1)
    with admission.reading() as read:
        read(100 * BODIES)


async def test_too_many_get_429_and_those_before_them_are_unharmed(folder: Path) -> None:
    async with running(folder, limits=HttpLimits(max_choices_in_flight=4)) as setting:
        worker = await setting.add(Role.UNIFIED, behaviour=Behaviour(pause_s=0.05))
        held = [asyncio.create_task(setting.complete("x", max_tokens=20, n=2)) for _ in range(2)]
        await worker.until(lambda: len(worker.assigned) == 2)
        for fields in (
            {},
            {"n": 2},
            {"prompt": ["a", "b"]},
            {"stream": True},
            {"prompt": 5},
        ):  # the last is not even looked at
            response = await setting.complete(**{"prompt": "x", **fields})
            error = response.json()["error"]
            assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
            assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
            assert "4 choices are in flight" in error["message"]
        assert not any(each.done() for each in held) and len(worker.assigned) == 2
        assert [(await each).json()["usage"]["completion_tokens"] for each in held] == [40, 40]
        assert (await setting.complete("x", max_tokens=1, n=4)).status_code == 200
        refused = await setting.complete(["a", "b", "c"], n=2)
        assert refused.status_code == 400 and "at most 4 in all" in refused.json()["error"]["message"]
        assert 'baton_requests_total{model_name="story",outcome="overloaded"} 5.0' in await setting.metrics()


async def test_bodies_that_wait_for_their_turn_count(folder: Path) -> None:
    """Reading them is quick, parsing is not: they must not pile up between the two."""
    limits = HttpLimits(max_body_bytes=LONG_BODY_BYTES + 1000)
    async with running(folder, limits=limits) as setting:
        await setting.add(Role.UNIFIED)
        content = json.dumps({"prompt": "x", "max_tokens": 1, "user": "y" * LONG_BODY_BYTES})
        service = setting.gateway.service
        await service.one_long_body.acquire()
        waiting = [asyncio.create_task(setting.client.post("/v1/completions", content=content)) for _ in range(BODIES)]
        held = service.admission
        await wait_until(lambda: held.num_bytes == BODIES * len(content))
        refused = await setting.client.post("/v1/completions", content=content)
        assert refused.status_code == 429 and "bytes are being read" in refused.json()["error"]["message"]
        assert (await setting.complete("short", max_tokens=1)).status_code == 200
        service.one_long_body.release()
        assert [(await each).status_code for each in waiting] == [200] * BODIES
        assert held.num_bytes == 0


async def test_the_limits_of_the_workers_are_looked_up_on_the_loop(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers come and go there: a thread could keep the limits of those before, or find none."""
    threads: set[int] = set()
    find = vars(Control)["limits"].fget

    def noted(control: Control) -> Limits:
        threads.add(threading.get_ident())
        return cast(Limits, find(control))

    monkeypatch.setattr(Control, "limits", property(noted))
    async with running(folder) as setting:
        await setting.add(Role.UNIFIED)
        assert (await setting.complete("long", max_tokens=1, user="y" * LONG_BODY_BYTES)).status_code == 200
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("num_bytes", [LONG_BODY_BYTES, HUGE_BODY_BYTES])
async def test_one_long_text_is_tokenised_at_a_time(
    folder: Path, num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes memory. Short texts, and long ones beside huge ones, do not wait for them."""
    running_now, most, begun, go_on = 0, 0, threading.Semaphore(0), threading.Semaphore(0)
    encode = TextTokenizer.encode_prompt

    def slow(self: TextTokenizer, text: str, bound: int | None = None) -> list[int] | None:
        nonlocal running_now, most
        if not text.startswith("slow"):
            return encode(self, text, bound)
        running_now += 1
        most = max(most, running_now)
        begun.release()
        go_on.acquire(timeout=300)
        running_now -= 1
        return encode(self, "x", bound)

    monkeypatch.setattr(TextTokenizer, "encode_prompt", slow)
    monkeypatch.setattr(TextTokenizer, "least_tokens", lambda *_: 0)
    async with running(folder) as setting:
        await setting.add(Role.UNIFIED)
        text = "slow" + " x" * (num_bytes // 2)
        waiting = [asyncio.create_task(setting.complete(text, max_tokens=1)) for _ in range(3)]
        assert await asyncio.to_thread(begun.acquire, timeout=300)
        held = setting.gateway.service.admission
        await wait_until(lambda: held.num_bytes > 3 * len(text))
        assert (await setting.complete("short", max_tokens=1)).status_code == 200
        if num_bytes == HUGE_BODY_BYTES:
            answer = await setting.complete("short", max_tokens=1, user="y" * LONG_BODY_BYTES)
            assert answer.status_code == 200
        go_on.release(3)
        answers = [(await each).status_code for each in waiting]
    assert (answers, most) == ([200] * 3, 1)


@pytest.mark.parametrize(
    ("num_bytes", "lane"), [(LONG_BODY_BYTES, "one_long_text"), (HUGE_BODY_BYTES, "one_huge_text")]
)
async def test_a_long_conversation_is_rendered_for_its_grammar_in_turn_with_long_texts(
    tmp_path: Path, num_bytes: int, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered, render = list[int](), ChatTemplates.render_conversation

    def noted(self: ChatTemplates, conversation: Conversation) -> str:
        rendered.append(threading.get_ident())
        return render(self, conversation)

    monkeypatch.setattr(ChatTemplates, "render_conversation", noted)
    async with serving(tmp_path) as setting:
        messages = [{"role": "user", "content": "Hi"}]
        body = {"messages": messages, "tools": TOOLS, "tool_choice": "required", "user": "y" * num_bytes}
        taken = getattr(setting.gateway.service, lane)
        await taken.acquire()
        rendered.clear()  # those of the start
        asking = asyncio.create_task(setting.client.post("/v1/chat/completions", json=body))
        await wait_until(lambda: bool(taken._waiters))
        assert not rendered
        taken.release()
        assert (await asking).status_code == 200
    assert len(rendered) >= 2 and threading.get_ident() not in rendered
