"""The prompt of a conversation's next turn begins with the last prompt and the answer as the model has written it."""

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from protocol.messages_gateway import Assign
from tests.gateway.conftest import chunks_of
from tests.gateway.text.channels import templates
from tests.gateway.tool_answers import TOOLS, Script, serving

SENT_BACK: dict[str, Callable[[str], Any]] = {  # how a client writes arguments that it was told
    "unchanged": lambda told: told,
    "compact": lambda told: json.dumps(json.loads(told), separators=(",", ":"), ensure_ascii=False),
    "escaped": lambda told: json.dumps(json.loads(told), indent=1),
    "as an object": json.loads,
}


def drawn(rng: random.Random, depth: int = 0) -> Any:
    """A JSON value."""
    kind = rng.randrange(8 if depth < 3 else 6)
    match kind:
        case 0:
            return rng.choice([True, False, None])
        case 1 | 2:
            return rng.choice([0, -1, 10**30, 1.0, 2.5e-9, 1e40, rng.randrange(99)])
        case 3 | 4 | 5:
            return "".join(rng.choice('ab c\n\t"\\/é漢😀</tool_call>{}') for _ in range(rng.randrange(9)))
        case 6:
            return [drawn(rng, depth + 1) for _ in range(rng.randrange(4))]
        case _:
            return {f"{drawn(rng, 9)}{index}": drawn(rng, depth + 1) for index in range(rng.randrange(4))}


def answer(rng: random.Random) -> str:
    """What a model says: perhaps thoughts and text, and one to three calls, as its template writes them."""
    thoughts = rng.choice(["", "<think>\nI look it up.\n</think>\n\n"])
    text = rng.choice(["", "Well.\n"])
    calls = []
    for _ in range(rng.randrange(1, 4)):
        arguments = {f"a{index}": drawn(rng) for index in range(rng.randrange(4))}
        written = json.dumps(arguments, ensure_ascii=False)
        name = rng.choice(["add", "look_up"])
        calls.append(f'<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>')
    return thoughts + text + "\n".join(calls)


def message_of(body: str) -> dict[str, Any]:
    """The message of a stream, as a client sends it back."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in chunks_of(body):
        delta = chunk["choices"][0]["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        for part in delta.get("tool_calls") or ():
            if part["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"id": part["id"], "type": "function", "function": part["function"]})
            else:
                message["tool_calls"][-1]["function"]["arguments"] += part["function"]["arguments"]
    return message


@pytest.mark.parametrize("written", SENT_BACK.values(), ids=list(SENT_BACK))
async def test_what_the_model_has_written_is_in_the_next_prompt_unchanged(
    tmp_path: Path, written: Callable[[str], Any]
) -> None:
    """So its KV is found in the cache, up to the results of the calls."""
    said: list[str] = []

    def script(assign: Assign, choice: int) -> Iterable[int]:
        return Script((said[-1],))(assign, choice)

    async with serving(tmp_path, template=templates.QWEN, script=script) as setting:
        tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        for seed in range(10):
            stream = seed % 2 == 0
            said.append(answer(random.Random(seed)))
            messages: list[dict[str, Any]] = [{"role": "user", "content": f"Question {seed}"}]
            body = {"messages": messages, "tools": TOOLS, "max_tokens": 1500}

            first = await setting.client.post("/v1/chat/completions", json=body | {"stream": stream})
            told = message_of(first.text) if stream else first.json()["choices"][0]["message"]
            assert told["tool_calls"], seed
            for call in told["tool_calls"]:
                call["function"]["arguments"] = written(call["function"]["arguments"])
            results = [{"role": "tool", "tool_call_id": call["id"], "content": "5"} for call in told["tool_calls"]]
            next_body = body | {"messages": [*messages, told, *results]}
            assert (await setting.client.post("/v1/chat/completions", json=next_body)).status_code == 200

            before, after = [assign.prompt_ids for assign in setting.workers[0].assigned[-2:]]
            assert after[: len(before)] == before
            behind = tokenizer.decode(list(after[len(before) :]), skip_special_tokens=False)
            assert behind.startswith(said[-1] + "<|im_end|>"), (seed, said[-1], behind)
