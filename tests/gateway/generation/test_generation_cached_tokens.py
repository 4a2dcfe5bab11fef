"""`usage.prompt_tokens_details.cached_tokens`: what workers say that they had cached of the prompts."""

from typing import Any

import pytest

from protocol.messages_gateway import Role
from protocol.worker_facts import KvPages, WorkerStats
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting, chunks_of

PROMPT = [65, 66, 67, 68, 69, 70]


def cached_in(usage: dict[str, Any]) -> int:
    found: int = usage["prompt_tokens_details"]["cached_tokens"]
    return found


@pytest.mark.parametrize("cached", [0, 4])
@pytest.mark.parametrize("late", [False, True])
async def test_whole_answers_and_streams_say_the_same(setting: Setting, cached: int, late: bool) -> None:
    await setting.add_pair(Behaviour(cached=cached, first_token_late=late))
    whole = (await setting.complete(PROMPT, max_tokens=3, n=2)).json()["usage"]
    assert whole["prompt_tokens"] == 6 and whole["total_tokens"] == 12
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = await setting.complete(PROMPT, max_tokens=3, n=2, stream=True, stream_options=options)
    assert cached_in(whole) == cached, "the prompt counts once, whatever n is"
    assert chunks_of(stream.text)[-1]["usage"] == whole


async def test_an_answer_that_ends_with_its_first_token_says_it(setting: Setting) -> None:
    """The gateway finds the stop string in prefill's token, before decode has said anything."""
    await setting.add_pair(Behaviour(cached=4, stop_after=0, script=lambda assign, choice: [65, 65]))
    answer = (await setting.complete(PROMPT, max_tokens=2, stop="A")).json()
    assert answer["choices"][0]["finish_reason"] == "stop" and cached_in(answer["usage"]) == 4


async def test_prompts_of_one_call_are_summed(setting: Setting) -> None:
    worker = await setting.add(Role.UNIFIED, behaviour=Behaviour(cached=4))
    usage = (await setting.complete([PROMPT, PROMPT, PROMPT[:2]], max_tokens=2)).json()["usage"]
    assert len(worker.assigned) == 3 and usage["prompt_tokens"] == 14
    assert cached_in(usage) == 4 + 4 + 2, "never more than a prompt has"


async def test_metrics_count_them(setting: Setting) -> None:
    await setting.add_pair(Behaviour(cached=4))
    for stream in (False, True):
        await setting.complete([PROMPT, PROMPT[:2]], max_tokens=2, n=2, stream=stream)
    lines = await setting.metrics()
    assert 'baton_prompt_tokens_total{model_name="story"} 16.0' in lines
    assert 'baton_cached_prompt_tokens_total{model_name="story"} 12.0' in lines, "twice 4 + 2"


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_the_salt_of_a_request_reaches_its_worker(setting: Setting, path: str) -> None:
    worker = await setting.add_pair()
    messages = [{"role": "user", "content": "x"}]
    body = {"max_tokens": 2, **({"prompt": PROMPT} if path == "completions" else {"messages": messages})}
    for salt in ({}, {"cache_salt": None}, {"cache_salt": "ä" * 256}):
        answer = await setting.client.post(f"/v1/{path}", json=body | salt)
        assert answer.status_code == 200, answer.text
    assert [each.cache_salt for each in worker.assigned] == ["", "", "ä" * 256]


async def test_cached_pages_are_shown_and_count_as_free_and_host_memory_is_shown(setting: Setting) -> None:
    host = KvPages(8, free=5, owned=3)
    stats = WorkerStats(KvPages(10, free=1, cached=7, owned=2), running=1, waiting=0, host_pages=host)
    await setting.add(Role.UNIFIED, "u", stats=stats)
    [row] = (await setting.client.get("/workers")).json()
    assert row["kv_pages"] == {"total": 10, "free": 1, "cached": 7, "owned": 2, "reserved": 0, "quarantined": 0}
    assert (row["host_pages"]["total"], row["host_pages"]["free"], row["host_pages"]["owned"]) == (8, 5, 3)
    lines = await setting.metrics()
    assert 'baton_kv_pages{model_name="story",role="unified",state="cached",worker="u"} 7.0' in lines
    assert 'baton_kv_usage_ratio{model_name="story",role="unified",worker="u"} 0.2' in lines
