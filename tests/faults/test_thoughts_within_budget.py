"""A budget of reasoning tokens is kept over HTTP: whole and streamed, with calls, preempted, and when a worker dies.

The model is the bundled one, with two of its special tokens named as markers of thoughts. It was never taught to end
them, so only a budget does.
"""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest

from tests.e2e.baton_process import PATIENCE_S, PROJECT, BatonProcess, read_event
from tests.faults.arming import Arming
from tests.faults.deployment import process_name, state_of, wait_until
from tests.gateway.text.channels.templates import QWEN
from tests.selecting import broad, first

pytestmark = [pytest.mark.faults, pytest.mark.slow]
STORY: Final = PROJECT / "models/story"
OPENING, CLOSING = 0, 1  # ids of the special tokens that become the markers
NAMES: Final = {"<|endoftext|>": "<think>", "<|im_start|>": "</think>"}
TEMPLATE: Final = QWEN + "{{- '<think>\n' }}"
FLAGS: Final = "serve --port 0 --dtype float32 --prefill 1 --decode 2 --hang-limit 0 --retry-wait 600 --page-size 4"
LITTLE: Final = "--context-length 1000 --max-total-tokens 1024 --num-reserved-decode-tokens 16"
BUDGET, MAX_TOKENS = 24, 120
MARKER_LEN, MOST_WAVES = 40, 40
SCHEMA: Final = {"type": "object", "properties": {"up": {"type": "boolean"}}, "required": ["up"]}
FUNCTION: Final = {"name": "look", "strict": True, "parameters": SCHEMA | {"additionalProperties": False}}
TOOLS: Final = [{"type": "function", "function": FUNCTION}]
ASKED: Final[dict[str, dict[str, Any]]] = {
    "text": {},
    "two": {"n": 2},
    "none": {"tools": TOOLS, "tool_choice": "none"},
    "strict": {"tools": TOOLS},
    "required": {"tools": TOOLS, "tool_choice": "required"},
    "several": {"tools": TOOLS, "tool_choice": "required", "n": 2},
    "json": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
}


@dataclass
class Told:
    """What one choice says."""

    thoughts: str = ""
    text: str = ""
    calls: str = ""
    finish: str = ""
    token_ids: tuple[int, ...] = ()

    @property
    def num_thoughts(self) -> int:
        """Tokens before the marker that ends thoughts; all, if it never comes."""
        ids = self.token_ids
        return ids.index(CLOSING) if CLOSING in ids else len(ids)

    def take(self, message: dict[str, Any], choice: dict[str, Any]) -> None:
        """A whole message, or one delta."""
        self.thoughts += message.get("reasoning_content") or ""
        self.text += message.get("content") or ""
        for call in message.get("tool_calls") or ():
            self.calls += call["function"].get("name") or ""
            self.calls += call["function"]["arguments"]
        self.token_ids += tuple(choice["token_ids"])
        self.finish = choice["finish_reason"] or self.finish


def body(name: str, number: int, budget: int | None) -> dict[str, Any]:
    """One request. `number`: another one has another prompt and another seed."""
    told = {} if budget is None else {"thinking_token_budget": budget}
    messages = [{"role": "user", "content": f"{number}. Tell me of the little dog."}]
    sampling = {"seed": number, "temperature": 1.2, "max_tokens": MAX_TOKENS, "return_token_ids": True}
    return {"messages": messages, **sampling, **told, **ASKED[name]}


def whole(baton: BatonProcess, asked: dict[str, Any]) -> tuple[list[Told], int]:
    """Its choices, and the tokens of thoughts that its usage tells."""
    answer = baton.http.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 200, answer.text
    choices = []
    for choice in answer.json()["choices"]:
        choices.append(Told())
        choices[-1].take(choice["message"], choice)
    return choices, reasoning_of(answer.json()["usage"])


def streamed(baton: BatonProcess, asked: dict[str, Any]) -> tuple[list[Told], int]:
    """The same of a stream."""
    choices = [Told() for _ in range(asked.get("n", 1))]
    usage: dict[str, Any] = {}
    more = {"stream": True, "stream_options": {"include_usage": True}}
    with baton.http.stream("POST", "/v1/chat/completions", json=asked | more) as answer:
        assert answer.status_code == 200, answer.read()
        for event in map(read_event, filter(None, answer.iter_lines())):
            assert "error" not in event, event
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                choices[choice["index"]].take(choice["delta"], choice)
    return choices, reasoning_of(usage)


def reasoning_of(usage: dict[str, Any]) -> int:
    found: int = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return found


@pytest.fixture(scope="module")
def arming(tmp_path_factory: pytest.TempPathFactory) -> Arming:
    return Arming(tmp_path_factory.mktemp("thoughts") / "faults")


@pytest.fixture(scope="module")
def baton(arming: Arming, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatonProcess]:
    folder = tmp_path_factory.mktemp("thinking")
    for path in STORY.iterdir():
        (folder / path.name).symlink_to(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (STORY / name).read_text()
        for old, new in NAMES.items():
            text = text.replace(json.dumps(old), json.dumps(new))
        (folder / name).unlink()
        (folder / name).write_text(text)
    (folder / "thoughts.jinja").write_text(TEMPLATE)
    argv = [*FLAGS.split(), *LITTLE.split(), "--model", str(folder), "--chat-template", str(folder / "thoughts.jinja")]
    with BatonProcess(*argv, log=folder / "log", variables=arming.variables) as found:
        yield found


def expect_kept(name: str, choices: list[Told], num_reasoning: int, budget: int) -> None:
    """No choice has more thoughts than it may, and the usage tells as many as there are."""
    if name == "json":
        assert num_reasoning == 0 and all(choice.text and not choice.thoughts for choice in choices)
        return
    numbers = [choice.num_thoughts for choice in choices]
    assert num_reasoning == sum(numbers) and max(numbers) <= budget, (name, numbers)
    assert all(bool(choice.calls) == ("tool_choice" in ASKED[name] and name != "none") for choice in choices)


@pytest.mark.parametrize("budget", [BUDGET, broad(0)])
def test_no_answer_thinks_longer_whole_or_streamed(baton: BatonProcess, budget: int) -> None:
    longest = 0
    asked = [body(name, number, budget) for number, name in enumerate(ASKED)]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers, streams = (list(pool.map(partial(ask, baton), asked)) for ask in (whole, streamed))
    assert answers == streams
    for name, (choices, num_reasoning) in zip(ASKED, answers, strict=True):
        expect_kept(name, choices, num_reasoning, budget)
        longest = max(longest, *(0 if name == "json" else choice.num_thoughts for choice in choices))
    assert longest == budget, "the bound was reached"


def test_without_a_budget_this_model_thinks_to_the_end(baton: BatonProcess) -> None:
    [choice], num_reasoning = whole(baton, body("text", 0, None))
    assert num_reasoning > BUDGET and not choice.text


@pytest.mark.broad
def test_a_budget_is_kept_by_answers_that_are_preempted(baton: BatonProcess) -> None:
    """All at once, again and again until some were. Each answer is that of a calm moment. One prompt's choices fit into
    a worker's memory, those of two do not."""
    preempted = partial(baton.metric, "request_retries_total", reason="retracted")
    asked = [body("text", number, BUDGET) | {"n": 4, "max_tokens": 200, "ignore_eos": True} for number in range(4)]
    before = preempted()
    calm = [whole(baton, each) for each in asked]
    for choices, num_reasoning in calm:
        assert num_reasoning == 4 * BUDGET and all(choice.num_thoughts == BUDGET for choice in choices)
    assert preempted() == before, "none of these was preempted"
    with ThreadPoolExecutor(len(asked)) as pool:
        for _ in range(MOST_WAVES):
            assert list(pool.map(partial(whole, baton), asked)) == calm
            if preempted() > before:
                break
        else:
            pytest.fail("nothing was preempted")
    assert baton.wait_for_rest()


@pytest.mark.parametrize("num_outputs", first(1, [BUDGET // 2, BUDGET, BUDGET + 4]))
def test_a_budget_is_kept_when_the_decode_worker_dies(baton: BatonProcess, arming: Arming, num_outputs: int) -> None:
    """Within the thoughts, at their last token, and behind them: the worker is held there, and then it dies."""
    asked = body("required", 100 + num_outputs, BUDGET)
    calm = streamed(baton, asked)
    expect_kept("required", *calm, BUDGET)
    assert calm[0][0].num_thoughts == BUDGET
    told = {name: asked[name] for name in ("messages", "tools")}
    marker = baton.http.post("/tokenize", json=told).raise_for_status().json()["tokens"]

    pids = {name: child.pid for child in baton.children() if (name := process_name(child)) is not None}
    arming.arm("decoding", marker, "decode", 0, pids, num_outputs=num_outputs, hold_s=PATIENCE_S)
    num_retries = baton.metric("request_retries_total", reason="worker_lost")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(streamed, baton, asked)
        proof = arming.proof("decoding", wait_until, lambda: baton.log_text()[-2000:])
        os.kill(proof.by, signal.SIGKILL)
        assert wait_until(lambda: state_of(proof.by) in "XZ"), "it survives"
        arming.let_go()
        assert answer.result() == calm
    assert baton.metric("request_retries_total", reason="worker_lost") == num_retries + 1
    assert baton.wait_for_return(proof.victim, proof.by)
