"""KV that is cached, flushed and short: real processes, over HTTP."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import FAKE, BatonProcess
from tests.selecting import broad

pytestmark = pytest.mark.slow
RUNNER = FakeRunner()
NUM_TOKENS = 100
TOPOLOGIES = {"pair": "", "unified": "--prefill 0 --decode 0 --unified 1"}


def chat(baton: BatonProcess, **fields: Any) -> tuple[str, int, int]:
    """A chat's answer, the tokens of its prompt, and how many of those were cached."""
    messages = [{"role": "user", "content": "Tell me of the dog that found a red ball in the park, please. " * 4}]
    body = {"messages": messages, "max_tokens": 12, "temperature": 0, **fields}
    answer = baton.http.post("/v1/chat/completions", json=body).raise_for_status().json()
    usage = answer["usage"]
    text: str = answer["choices"][0]["message"]["content"]
    return text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def flush(baton: BatonProcess) -> None:
    assert baton.http.post("/flush_cache").raise_for_status().json() == {"status": "ok"}


def test_a_second_chat_is_cached_until_the_cache_is_flushed(story: BatonProcess) -> None:
    flush(story)
    text, num_prompt, cached = chat(story)
    assert cached == 0 and num_prompt > 32, "two pages at least"
    assert chat(story) == (text, num_prompt, (num_prompt - 1) // 16 * 16)
    assert chat(story, max_tokens=1)[2] == (num_prompt - 1) // 16 * 16, "the first token may be all there is"
    assert story.wait_for_rest()
    assert all(worker["kv_pages"]["cached"] > 0 for worker in story.workers())

    assert chat(story, cache_salt="another tenant") == (text, num_prompt, 0)
    assert chat(story, cache_salt="another tenant")[2] > 0

    flush(story)
    assert chat(story) == (text, num_prompt, 0)
    flush(story)
    assert story.wait_for_rest()
    assert all(worker["kv_pages"]["free"] == worker["kv_pages"]["total"] for worker in story.workers())


SHORT = [("pair", "host", 4), *(broad(("unified", "host", 4)),), *(broad((each, "prompt", 1)) for each in TOPOLOGIES)]


@pytest.mark.parametrize("topology, retract_to, page_size", SHORT)
def test_a_pool_far_too_small_serves_everything_exactly(
    fake_folder: Path, tmp_path: Path, topology: str, retract_to: str, page_size: int
) -> None:
    """Twelve requests of up to 160 tokens, all at once, in memory for two of them: some are preempted. Where their KV
    waits in host memory, nobody begins again on a pair, where prefill draws first tokens."""
    rng = random.Random(16)
    prompts = [[rng.randrange(RUNNER.vocab_size) for _ in range(rng.randint(10, 60))] for _ in range(12)]
    flags = f"--port 0 --page-size {page_size} --max-total-tokens 320 --max-attempts 1 {TOPOLOGIES[topology]}"
    argv = [*flags.split(), *(["--retract-to", "host"] if retract_to == "host" else [])]
    with BatonProcess(str(fake_folder), *argv, log=tmp_path / "log", program=FAKE) as baton:
        answer = baton.complete(prompt=prompts, max_tokens=NUM_TOKENS, temperature=0, return_token_ids=True)
        assert [choice["token_ids"] for choice in answer["choices"]] == [
            RUNNER.expected_tokens(prompt, NUM_TOKENS) for prompt in prompts
        ]
        assert baton.wait_for_rest()
        [decode] = [worker for worker in baton.workers() if worker["role"] != "prefill"]
        if retract_to == "host":
            assert decode["host_pages"]["free"] == decode["host_pages"]["total"] == 64 * 320 // 4
            assert baton.metric("kv_spills_total", worker=decode["id"]) > 0
            assert baton.metric("spilled_requests", worker=decode["id"]) == 0
        else:
            assert baton.metric("request_retries_total", reason="retracted") > 0
        flush(baton)
        assert baton.wait_for_rest()
        assert all(worker["kv_pages"]["free"] == worker["kv_pages"]["total"] for worker in baton.workers())
    lines = (tmp_path / "log").read_text()
    if (topology, retract_to) != ("unified", "host"):
        assert (" info gateway request preempted " in lines) == (retract_to != "host")
    assert "request retried" not in lines and "worker lost" not in lines


def chat_of_turns(baton: BatonProcess, topic: str, num_turns: int) -> list[tuple[set[str], int, int]]:
    """Of each turn of a chat: the workers that cached some of it, the tokens of its prompt, and those cached before."""
    messages: list[dict[str, str]] = []
    turns = []
    for turn in range(num_turns):
        messages.append({"role": "user", "content": f"{turn}. Tell me more of the {topic}, please. " * 5})
        before = num_cached(baton)
        body = {"messages": messages, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        answer = baton.http.post("/v1/chat/completions", json=body).raise_for_status().json()
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        assert baton.wait_for_rest()  # with what it holds, each worker tells what it has cached
        usage, after = answer["usage"], num_cached(baton)
        who = {worker for worker, number in after.items() if number > before[worker]}
        turns.append((who, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
    return turns


def num_cached(baton: BatonProcess) -> dict[str, int]:
    return {row["id"]: row["kv_pages"]["cached"] for row in baton.workers()}


@pytest.mark.broad
def test_a_chat_stays_with_its_pair_and_computes_new_turns_only(tmp_path: Path) -> None:
    with BatonProcess("serve", *"--port 0 --prefill 2 --decode 2".split(), log=tmp_path / "log") as baton:
        homes = []
        for topic in ("dog", "ship", "little red house"):
            turns = chat_of_turns(baton, topic, 3)  # an odd number: without a hit, equals take turns
            homes.append(turns[0][0])
            assert all(who == homes[-1] and len(who) == 2 for who, _, _ in turns), turns
            assert turns[0][2] < 64, "what all chats begin with"
            for (_, num_before, _), (_, num_prompt, cached) in pairwise(turns):
                assert num_prompt - 1 >= cached >= (num_before - 1) // 16 * 16 >= 64, turns
        assert len(set().union(*homes)) == 4, "new chats are spread"
