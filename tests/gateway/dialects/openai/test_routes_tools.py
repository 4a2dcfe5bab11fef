"""Chats with tools and thoughts over HTTP."""

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.text.channels.formats import THINK
from protocol.errors import ConfigError
from protocol.messages_gateway import Role
from testkit.fake_worker import Behaviour, FakeWorker
from tests.gateway.conftest import Setting, chunks_of, wait_until
from tests.gateway.text.channels import templates
from tests.gateway.tool_answers import ADD, ANSWER, ARGUMENTS, LENGTHS, LOOK_UP, MARKERS, TOOLS, Script, serving


async def ask(setting: Setting, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, **fields}
    return await setting.client.post("/v1/chat/completions", json=body)


def folded(body: str) -> dict[int, dict[str, Any]]:
    """The message of each choice of a stream, as a client builds it, and how it has ended."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks_of(body):
        for part in chunk["choices"]:
            choice = choices.setdefault(part["index"], {"content": "", "reasoning_content": "", "tool_calls": []})
            delta = part["delta"]
            assert delta.get("reasoning") == delta.get("reasoning_content")
            choice["content"] += delta.get("content") or ""
            choice["reasoning_content"] += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(choice["tool_calls"]):
                    assert call["type"] == "function"
                    choice["tool_calls"].append({"id": call["id"], **call["function"]})
                else:
                    choice["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            choice["finish_reason"] = part["finish_reason"] or choice.get("finish_reason")
    return choices


def whole(body: Any) -> dict[int, dict[str, Any]]:
    """The same of a whole answer."""
    choices = {}
    for choice in body["choices"]:
        message = choice["message"]
        calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", ())]
        choices[choice["index"]] = {
            "content": message["content"] or "",
            "reasoning_content": message.get("reasoning_content", ""),
            "tool_calls": calls,
            "finish_reason": choice["finish_reason"],
        }
    return choices


def same(choices: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices without the ids of calls, which are of this answer alone. Each is another one."""
    ids = [call.pop("id") for choice in choices.values() for call in choice["tool_calls"]]
    assert len(set(ids)) == len(ids) and all(call_id.startswith("call_") for call_id in ids)
    return [choices[index] for index in sorted(choices)]


@pytest.mark.parametrize(
    ("length", "asked", "found"),
    [
        (2_000_000, {}, r"messages with tools has 2\d{6} characters, at least \d+ tokens"),
        (20_000, {}, r"messages with tools has 2\d{4} tokens, which leaves none"),
        (1, {"max_tokens": 1_000_000}, r"messages with tools has \d+ tokens and max_tokens is 1000000"),
    ],
)
async def test_a_prompt_is_too_long_with_its_tools(
    tmp_path: Path, length: int, asked: dict[str, Any], found: str
) -> None:
    tool = {"type": "function", "function": {"name": "add", "description": "x" * length}}
    async with serving(tmp_path, "") as setting:
        error = (await ask(setting, tools=[tool], **asked)).json()["error"]
    assert error["code"] == "context_length_exceeded" and re.search(found, error["message"]), error
    assert error["param"] == ("max_tokens" if asked else "messages")


async def test_tools_that_are_not_shown_are_not_named_in_a_prompt_that_is_too_long(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    said = [{"role": "user", "content": "x" * 20_000}]
    async with serving(tmp_path, "", tool_call_parser="none") as setting:
        error = (await ask(setting, messages=said, tools=[tool], tool_choice="none")).json()["error"]
    assert error["param"] == "messages" and re.search(r"messages has 2\d{4} tokens", error["message"]), error


@pytest.mark.parametrize("with_ids", [False, True], ids=["text", "ids"])
@pytest.mark.parametrize("burst", [1, 7, 500])
async def test_thoughts_and_calls_whole_and_streamed(tmp_path: Path, with_ids: bool, burst: int) -> None:
    plain = "No call, <tool_call>\n{} is none."
    async with serving(tmp_path, ANSWER, plain, with_ids=with_ids, burst=burst) as setting:
        body = (await ask(setting, n=2)).json()
        streamed = await ask(setting, n=2, stream=True)
        expected = [
            {
                "content": "Well.",
                "reasoning_content": "I add.",
                "tool_calls": [
                    {"name": "add", "arguments": ARGUMENTS[0]},
                    {"name": "look_up", "arguments": ARGUMENTS[1]},
                ],
                "finish_reason": "tool_calls",
            },
            {"content": plain, "reasoning_content": "", "tool_calls": [], "finish_reason": "stop"},
        ]
        assert same(whole(body)) == same(folded(streamed.text)) == expected
        spelt = 1 + len(THINK.closing) - 1  # the token that ends the opening marker, and those before the closing one's
        assert body["usage"]["completion_tokens_details"] == {
            "reasoning_tokens": len("\nI add.\n") + (0 if with_ids else spelt)
        }
        assert 'baton_request_success_total{finished_reason="calls",model_name="story"} 2.0' in await setting.metrics()


@pytest.mark.parametrize("burst", [1, 500])
@pytest.mark.parametrize("end", ["", " oops}}\n</tool_call>", "\n</tool_call>", "\n</tool_call>\nOn."])
async def test_a_call_whose_arguments_are_no_json_is_never_told_as_a_good_one(
    tmp_path: Path, burst: int, end: str
) -> None:
    """A whole answer has it as text. A stream has what was told before, the same text, and no end that means calls."""
    broken = f'<tool_call>\n{{"name": "look_up", "arguments": {{"word": "cat"{end}'
    async with serving(tmp_path, f"{ADD}\n{broken}", broken, burst=burst) as setting:
        good, alone = same(whole((await ask(setting, n=2)).json()))
        assert (good["content"], alone["content"]) == ("\n" + broken, broken)
        assert good["tool_calls"] == [{"name": "add", "arguments": ARGUMENTS[0]}] and alone["tool_calls"] == []
        assert good["finish_reason"] == alone["finish_reason"] == "stop"

        streamed = same(folded((await ask(setting, n=2, stream=True)).text))
        for choice, wanted in zip(streamed, (good, alone), strict=True):
            told = choice.pop("tool_calls").pop()
            assert (told["name"], told["arguments"].rstrip()) == ("look_up", '{"word": "cat"')
            assert choice == {name: wanted[name] for name in choice}


@pytest.mark.parametrize("burst", [1, 500])
async def test_an_answer_that_is_cut_within_a_call_ends_with_length(tmp_path: Path, burst: int) -> None:
    async with serving(tmp_path, f"{ADD}\n{LOOK_UP}", with_ids=False, burst=burst) as setting:
        for num_tokens in range(len(ADD), len(ADD) + 60):
            [choice] = same(whole((await ask(setting, max_tokens=num_tokens)).json()))
            [streamed] = same(folded((await ask(setting, max_tokens=num_tokens, stream=True)).text))
            assert choice == streamed and choice["finish_reason"] == "length"
            first, *second = choice["tool_calls"]
            assert first == {"name": "add", "arguments": ARGUMENTS[0]}
            assert all(ARGUMENTS[1].startswith(call["arguments"]) for call in second)


async def test_a_message_with_calls_alone_has_no_content(tmp_path: Path) -> None:
    async with serving(tmp_path, ADD) as setting:
        body = (await ask(setting)).json()
        assert body["choices"][0]["message"]["content"] is None
        assert "completion_tokens_details" not in body["usage"] and "reasoning" not in body["choices"][0]["message"]


async def test_no_call_is_read_where_the_client_forbids_it(tmp_path: Path) -> None:
    async with serving(tmp_path, f"<think>a</think>{ADD}", with_ids=False) as setting:
        asked: list[dict[str, Any]] = [{"tool_choice": "none"}, {"tools": []}, {"tools": None}]
        for fields in asked:
            [choice] = same(whole((await ask(setting, **fields)).json()))
            assert (choice["content"], choice["reasoning_content"]) == (ADD, "a")
            assert choice["finish_reason"] == "stop" and not choice["tool_calls"]


async def test_one_call_is_read_where_several_are_forbidden(tmp_path: Path) -> None:
    async with serving(tmp_path) as setting:
        [choice] = same(whole((await ask(setting, parallel_tool_calls=False)).json()))
        assert [call["name"] for call in choice["tool_calls"]] == ["add"]
        assert choice["content"] == "Well.", "the second call is left out"


async def test_calls_that_must_be_made_or_follow_a_schema_are_forced_by_a_grammar(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    strict = {"type": "function", "function": {"name": "add", "strict": True, "parameters": schema}}
    named = {"type": "function", "function": {"name": "add"}}
    async with serving(tmp_path) as setting:
        [worker] = setting.workers
        asked: list[dict[str, Any]] = [
            {"tool_choice": "required"},
            {"tool_choice": named},
            {"tools": [TOOLS[1], strict]},
        ]
        for fields in asked:
            answer = await ask(setting, **fields)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
        grammars = [assign.grammar for assign in worker.assigned]
        assert all(grammars) and len(set(grammars)) == 3
        assert (await ask(setting)).status_code == 200 and not worker.assigned[-1].grammar, "drafts go on"
        assert (await ask(setting, tools=[strict], tool_choice="none")).status_code == 200
        assert not worker.assigned[-1].grammar


async def test_a_call_that_must_be_made_beside_a_grammar_of_the_whole_answer_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as setting:
        answer = await ask(setting, tool_choice="required", response_format={"type": "json_object"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")


async def test_a_schema_that_cannot_be_followed_is_refused_by_its_place(tmp_path: Path) -> None:
    strict = {"type": "function", "function": {"name": "add", "strict": True, "parameters": {"not": {}}}}
    async with serving(tmp_path) as setting:
        answer = await ask(setting, tools=[TOOLS[1], strict])
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools.1.function.parameters")


async def test_length_within_arguments(tmp_path: Path) -> None:
    async with serving(tmp_path) as setting:
        most = ANSWER.index('"b"') - sum(len(marker) - 1 for marker in ("<think>", "</think>", "<tool_call>"))
        for stream in (False, True):
            answer = await ask(setting, max_tokens=most, stream=stream)
            [choice] = same(folded(answer.text) if stream else whole(answer.json()))
            assert choice["finish_reason"] == "length"
            assert choice["tool_calls"] == [{"name": "add", "arguments": '{"a": 1, '}]


async def test_a_stop_string_within_arguments_does_not_cut_them(tmp_path: Path) -> None:
    async with serving(tmp_path) as setting:
        for stop in ("add", "caf\u00e9", "}}"):
            [choice] = same(whole((await ask(setting, stop=stop)).json()))
            assert [call["arguments"] for call in choice["tool_calls"]] == ARGUMENTS
        [choice] = same(whole((await ask(setting, stop="ell")).json()))
        assert (choice["content"], choice["tool_calls"], choice["finish_reason"]) == ("W", [], "stop")


async def test_log_probabilities_are_those_of_all_tokens(tmp_path: Path) -> None:
    async with serving(tmp_path) as setting:
        body = (await ask(setting, logprobs=True)).json()
        streamed = chunks_of((await ask(setting, logprobs=True, stream=True)).text)
        told = [token["token"] for token in body["choices"][0]["logprobs"]["content"]]
        assert len(told) == body["usage"]["completion_tokens"] and told[:3] == ["<think>", "\n", "I"]
        parts = [part["logprobs"] for chunk in streamed for part in chunk["choices"]]
        assert [token["token"] for part in parts if part for token in part["content"]] == told


async def test_an_answer_in_a_grammar_and_a_completion_are_text(tmp_path: Path) -> None:
    async with serving(tmp_path, ANSWER, with_ids=False) as setting:
        answer = await ask(setting, tools=None, structured_outputs={"regex": "(.|\n)*"})
        assert answer.json()["choices"][0]["message"]["content"] == ANSWER
        completed = await setting.complete(max_tokens=500)
        assert completed.json()["choices"][0]["text"] == ANSWER


@pytest.mark.parametrize(
    ("options", "reasoning", "content"),
    [
        ({}, "a", "b"),
        ({"reasoning_parser": "none"}, "", "a</think>\n\nb"),
        ({"reasoning_parser": "seed_oss"}, "", "a</think>\n\nb"),
        ({"reasoning_parser": "deepseek_r1"}, "a", "b"),
    ],
)
async def test_thoughts_that_the_prompt_opens(
    tmp_path: Path, options: dict[str, Any], reasoning: str, content: str
) -> None:
    async with serving(tmp_path, "a</think>\n\nb", template=templates.R1, **options) as setting:
        [choice] = same(whole((await ask(setting, tools=None)).json()))
        assert (choice["reasoning_content"], choice["content"]) == (reasoning, content)


async def test_the_user_names_the_format_of_calls(tmp_path: Path) -> None:
    coder = "<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>"
    async with serving(tmp_path, coder, tool_call_parser="qwen3_coder") as setting:
        [choice] = same(whole((await ask(setting)).json()))
        assert choice["tool_calls"] == [{"name": "add", "arguments": '{"a": "5"}'}]

    with pytest.raises(ConfigError, match="--tool-call-parser: got 'qwen4', expected one of hermes, "):
        async with serving(tmp_path, tool_call_parser="qwen4"):
            pass


async def test_tools_are_refused_where_calls_are_turned_off(tmp_path: Path) -> None:
    async with serving(tmp_path, tool_call_parser="none") as setting:
        answer = await ask(setting)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


async def test_arguments_are_given_to_the_template_as_it_takes_them(tmp_path: Path) -> None:
    """One that wants text would fail on an object."""
    calls = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    async with serving(tmp_path, ADD, template=templates.QWEN_OF_TEXT) as setting:
        answer = await setting.client.post("/tokenize", json={"messages": said, "tools": TOOLS})
        text = (await setting.client.post("/detokenize", json={"tokens": answer.json()["tokens"]})).json()["prompt"]
        assert '{"name": "add", "arguments": {"a": 1}}' in text
        assert (await ask(setting)).json()["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", ["I ad", '"a": 1', "look_", "caf"])
async def test_a_worker_that_is_lost_in_the_middle_changes_nothing(tmp_path: Path, stream: bool, where: str) -> None:
    async with serving(tmp_path) as setting:
        [good] = setting.workers
        calm = await ask(setting, n=2, stream=stream)
        script = Script((ANSWER,))
        text = ANSWER[: ANSWER.index(where) + len(where)]
        after = len(list(script(good.assigned[0], 0))) - len(list(Script((ANSWER[len(text) :],))(good.assigned[0], 0)))

        victim = await setting.add(Role.UNIFIED, "u2", behaviour=Behaviour(script, stop_after=after), **LENGTHS)
        asking = asyncio.create_task(ask(setting, n=2, stream=stream))
        await _has_sent(setting, victim, after)
        await victim.stop()
        answer = await asking

        assert [each.num_replayed for each in good.assigned[1:]] == [after, after], "the other worker went on"
        if stream:
            assert same(folded(answer.text)) == same(folded(calm.text))
        else:
            assert same(whole(answer.json())) == same(whole(calm.json()))
            assert answer.json()["usage"] == calm.json()["usage"], "thoughts are counted once"


async def _has_sent(setting: Setting, victim: FakeWorker, num_tokens: int) -> None:
    """The gateway has so many tokens of each of two choices."""
    await victim.until(lambda: bool(victim.assigned))
    records, request_id = setting.gateway.control.dispatch.requests, victim.assigned[-1].request_id

    def has_sent() -> bool:
        record = records.find(request_id)
        return record is not None and [len(choice.token_ids) for choice in record.choices] == [num_tokens] * 2

    await wait_until(has_sent)


async def test_the_log_tells_the_format_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "baton.gateway"):
        async with serving(tmp_path):
            pass
    [told] = [record for record in caplog.records if record.message == "format of answers"]
    assert vars(told)["baton_fields"] == {
        "tool_calls": "hermes",
        "reasoning": "qwen3",
        "arguments": "object",
        "one_token_markers": " ".join(MARKERS),
    }
