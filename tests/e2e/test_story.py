"""The bundled model as a newcomer meets it, and what the server says of itself."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from testkit.checkpoints import greedy_reference
from tests.e2e.baton_process import PROJECT, BatonProcess

pytestmark = pytest.mark.slow
STORY = PROJECT / "models" / "story"
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "top_k": 50, "max_tokens": 48, "ignore_eos": True}
PROMPTS = ([300, 17, 99], list(range(100, 170)), [5])


def test_it_tells_a_story(story: BatonProcess) -> None:
    answer = story.complete(prompt="Once upon a time", max_tokens=120, temperature=0)
    words = answer["choices"][0]["text"].lower().split()
    assert len(words) > 30
    assert len(set(words)) > 15, "it does not repeat one word"


def test_it_can_add(story: BatonProcess) -> None:
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    answer = story.http.post("/v1/chat/completions", json={"messages": messages, "temperature": 0}).json()
    assert "7" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_its_tokens_equal_those_of_transformers(story: BatonProcess) -> None:
    expected = greedy_reference(STORY, PROMPTS, 64)
    asked = {"max_tokens": 64, "temperature": 0, "ignore_eos": True}
    assert sum(map(len, expected)) > 100
    for prompt, continuation in zip(PROMPTS, expected, strict=True):
        got = story.tokens(prompt, **asked)
        assert got[: len(continuation)] == continuation


def test_a_time_line_across_three_processes(story: BatonProcess) -> None:
    answer = story.complete(prompt="Once upon a time", max_tokens=8, timeline=True, ignore_eos=True)
    moments = sorted(answer["timeline"], key=lambda moment: moment["at_ms"])
    assert {moment["worker"] for moment in moments} == {"gateway", "prefill-0", "decode-0"}
    assert all(moment["at_ms"] >= 0 for moment in moments)
    names = [moment["name"] for moment in moments]
    wanted = ["queued at decode", "reserved, job sent", "prefill start", "KV delivered", "first decode", "decode done"]
    assert [name for name in names if name in wanted] == wanted
    *_, last = (chunk for chunk in story.stream(prompt="Once", max_tokens=4, timeline=True) if "choices" in chunk)
    assert {moment["worker"] for moment in last["timeline"]} == {"gateway", "prefill-0", "decode-0"}


def test_sampled_tokens_are_the_same_on_every_topology(story: BatonProcess, tmp_path: Path) -> None:
    def ask(baton: BatonProcess, seeds: range) -> list[list[int]]:
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda seed: baton.tokens(PROMPTS[seed % 3], seed=seed, **SAMPLED), seeds))

    alone = [ask(story, range(seed, seed + 1))[0] for seed in range(3)]
    together = ask(story, range(16))
    assert together[:3] == alone
    assert len(set(map(tuple, together))) == 16
    flags = "--port 0 --prefill 0 --decode 0 --unified 1 --dtype float32 --page-size 1 --max-total-tokens 4096"
    with BatonProcess("serve", *flags.split(), log=tmp_path / "log") as unified:
        assert ask(unified, range(16)) == together
        assert unified.wait_for_rest()


def test_what_the_server_says_of_itself(story: BatonProcess) -> None:
    assert story.get("/health") == {"status": "ok"}
    models = story.get("/v1/models")
    assert (models["object"], [model["id"] for model in models["data"]]) == ("list", ["story"])
    assert story.wait_for_rest(), "what other tests asked for is over"
    workers = {worker["id"]: worker for worker in story.workers()}
    assert {each: worker["role"] for each, worker in workers.items()} == {"prefill-0": "prefill", "decode-0": "decode"}
    for worker in workers.values():
        assert worker["state"] == "ready"
        assert psutil.Process(worker["pid"]).ppid() == story.process.pid
        assert set(worker["kv_pages"]) == {"total", "free", "cached", "owned", "reserved", "quarantined"}
        assert worker["kv_pages"]["total"] == 8192 // 16
        assert worker["running"] == worker["waiting"] == 0
