"""A conversation with forced calls, rendered twice: the next prompt begins with the last prompt and the call as it was
written, token by token, so all of its full pages are cached. Each format, with drawn answers of its grammar.
"""

import json
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from tokenizers import AddedToken, Tokenizer

from gateway.dialects.openai.fields import ChatRequest, parse
from gateway.dialects.openai.read import ask_of_chat
from gateway.generation.grammars.texts import text_of as text_of_grammar
from gateway.generation.translate import NO_STOPS, PreparedPrompt, Translator
from gateway.text.answer_format import AnswerFormat
from gateway.text.channels.fold import Whole, fold
from gateway.text.channels.formats import CALL_FORMATS, THINK
from gateway.text.channels.markers import Markers
from gateway.text.channels.readers import Format
from gateway.text.chat_template import ChatTemplates
from gateway.text.model_folder import read_model_folder
from gateway.text.pipeline import Pipeline
from gateway.text.plain_marks import PlainMarks
from gateway.text.tokenizer import load_tokenizer
from gateway.words.limits import Limits
from gateway.words.request import Ask
from models.train.train import STORY_FOLDER
from protocol.messages_gateway import FinishReason
from tests.gateway.folders import EOS, marked_tokenizer, write_folder
from tests.gateway.generation.call_walks import drawn, model_of, random_tools, text_of
from tests.gateway.text.channels import templates

TEMPLATES: Final = {
    "hermes": templates.QWEN,
    "qwen3_coder": templates.QWEN_CODER,
    "minimax_m2": templates.MINIMAX,
    "minimax": templates.MINIMAX_M1,
    "seed_oss": templates.SEED,
    "glm": templates.GLM,
}
LIMITS: Final = Limits()
NUM_SEEDS: Final = 8


class Turns:
    """A model of a format, and the turns of its conversations."""

    def __init__(self, name: str, path: Path) -> None:
        form = Format(CALL_FORMATS[name], THINK)
        self._template = TEMPLATES[name]
        folder = write_folder(path, marked_tokenizer([*form.markers, "<|im_end|>"]), template=self._template)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer = load_tokenizer(folder)
        assert tokenizer is not None
        markers = Markers(form, tokenizer.added_id)
        sources = ChatTemplates({"default": self._template}, {}, plain=PlainMarks(tokenizer.special_texts))
        answers = AnswerFormat(markers, name, "qwen3")
        self.translator = Translator(read_model_folder(folder), tokenizer, sources, answers=answers)
        self._model, self._drawing = model_of(name, True), Tokenizer.from_file(f"{STORY_FOLDER}/tokenizer.json")
        self._drawing.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in form.markers])
        self._calls = CALL_FORMATS[name]

    def answer(self, ask: Ask, rng: Random) -> tuple[PreparedPrompt, str]:
        """The prompt, and an answer that its grammar allows. Up to its first call it is as this template writes it."""
        asked = self.translator.shape_of(ask)
        assert asked is not None
        is_open = bool(asked.source["reasoning"]["is_open"])
        with_thoughts = is_open or ("reasoning_content" in self._template and rng.random() < 0.5)
        turn = templates.assistant("", "I go." if with_thoughts else "", [("f", {})])
        before = templates.renderer(self._template)([turn], []).partition(self._calls.opening)[0]
        first = before.partition(f"{THINK.opening}\n" if is_open else "assistant\n")[2] + self._calls.opening

        ids = self._drawing.encode(first, add_special_tokens=False).ids
        said = drawn(self._model, asked, rng, len(ids) + rng.choice((0, 90)), ids)
        assert said.has_ended
        [prompt] = self.translator.prompts(ask, LIMITS, text_of_grammar(asked))
        return prompt, text_of(self._model, said.tokens)

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, as a model writes it that was taught by this tokenizer."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def read(self, prompt: PreparedPrompt, ids: list[int]) -> Whole:
        """What a client is told of an answer."""
        assert prompt.channels is not None
        channels = prompt.channels.channels("answer", 0)
        detokenizer = self.translator.new_detokenizer(prompt.token_ids, True)
        step = Pipeline(detokenizer, NO_STOPS, 0, 0, channels).feed((*ids, EOS), FinishReason.STOP)
        return fold(step.events)


def asked_of(messages: list[dict[str, Any]], tools: list[dict[str, Any]], *, parallel: bool) -> Ask:
    body = {"messages": messages, "tools": tools, "tool_choice": "required", "parallel_tool_calls": parallel}
    return ask_of_chat(parse(ChatRequest, body))


@pytest.mark.parametrize("name", TEMPLATES)
def test_forced_calls_stand_in_the_next_prompt_as_they_were_written(name: str, tmp_path: Path) -> None:
    turns, num_compared, has_several = Turns(name, tmp_path), 0, False
    for seed in range(NUM_SEEDS):
        rng = Random(f"{name} {seed}")
        tools = [
            {"type": "function", "function": {"name": tool.name, "parameters": tool.schema}}
            for tool in random_tools(rng, strict=False)
        ]
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
        for _ in range(2):
            prompt, said = turns.answer(asked_of(messages, tools, parallel=seed % 3 != 0), rng)
            whole = turns.read(prompt, turns.ids(said))
            assert whole.calls and not whole.text
            if not all(is_spelt_as_python_does(call.arguments) for call in whole.calls):
                break
            num_compared, has_several = num_compared + 1, has_several or len(whole.calls) > 1

            calls = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in whole.calls
            ]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            if whole.reasoning:
                messages[-1]["reasoning_content"] = whole.reasoning
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": "5"} for call in calls]
            [after] = turns.translator.token_ids(asked_of(messages, tools, parallel=True), LIMITS)
            expected = [*prompt.token_ids, *turns.ids(said)]
            assert list(after[: len(expected)]) == expected, (seed, json.dumps(said), calls)
    assert num_compared >= NUM_SEEDS and has_several, "most are compared, and some have several calls"


def is_spelt_as_python_does(arguments: str) -> bool:
    """Whether numbers are written as a template writes them: not as -0 or 1.50."""
    return json.dumps(json.loads(arguments), ensure_ascii=False) == arguments
