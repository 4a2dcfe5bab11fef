"""A model that answers the suites without weights: it says the first of its answers that the grammar allows.

A fake worker asks it for tokens. It reads the prompt as the chat template has written it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from llguidance import LLMatcher
from tokenizers import Tokenizer

from protocol.messages_gateway import Assign
from runtime.grammar_limits import limits
from runtime.vocabulary import Vocabulary, load_vocabulary
from tests.gateway.folders import EOS, VOCAB_SIZE

TURN: Final = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
TOOLS: Final = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
QUOTED: Final = re.compile(r"'(.+?)'")
NUMBER: Final = re.compile(r"\d+")
WORD: Final = re.compile(r"[a-z]+")
THOUGHT: Final = "<think>\nThe tools know more.\n</think>\n\n"
SENTENCE: Final = "It is done, and you may ask for more."
JSON: Final[Sequence[dict[str, Any]]] = (
    {"answer": "PONG", "count": 2},
    {"setup": "Why does a cat sit on the page?", "punchline": "It reads."},
    {"city": "Athens", "celsius": 21},
)


@dataclass(frozen=True)
class Asked:
    """What a prompt asks for: the last message of the user, and the tools. `has_results`: of calls behind it."""

    question: str
    tools: Sequence[dict[str, Any]]
    has_results: bool


def read(prompt: str) -> Asked:
    """Reads a prompt of the template tests/gateway/text/channels/templates.py names QWEN."""
    turns = [(found[1], found[2]) for found in TURN.finditer(prompt)]
    listed = TOOLS.search(prompt)
    tools = [json.loads(line)["function"] for line in listed[1].splitlines()] if listed else []
    users = [place for place, (role, _) in enumerate(turns) if role == "user"]
    question = turns[users[-1]][1] if users else ""
    behind = turns[users[-1] + 1 :] if users else turns
    return Asked(question, tools, any(role == "tool" for role, _ in behind))


def answers(asked: Asked) -> Iterator[str]:
    """All that it can say, the best first: calls that the question asks for, a sentence, any one call, JSON."""
    wanted = [call(tool, asked.question) for tool in asked.tools if is_wanted(tool["name"], asked.question)]
    if wanted and not asked.has_results:
        yield f"{THOUGHT}Well.\n" + "\n".join(wanted)
        yield THOUGHT + "\n".join(wanted)
        yield THOUGHT + wanted[0]
    sentence = "PONG" if "PONG" in asked.question else SENTENCE
    yield THOUGHT + sentence if "reasoning" in asked.question else sentence
    yield from (THOUGHT + call(tool, asked.question) for tool in asked.tools)
    named = sorted(JSON, key=lambda value: sum(key in asked.question for key in value), reverse=True)
    yield from map(json.dumps, named)


def is_wanted(name: str, question: str) -> bool:
    """Whether a question has a word of a tool's name, as `weather` of get_weather."""
    return not set(WORD.findall(name.lower())).isdisjoint(WORD.findall(question.lower()))


def call(tool: dict[str, Any], question: str) -> str:
    """A call whose arguments come from the question, as far as they can."""
    parameters = tool.get("parameters") or {}
    values = parameters.get("properties", {})
    numbers = iter(NUMBER.findall(question))
    arguments = {name: value(schema, question, numbers) for name, schema in values.items()}
    written = json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{tool["name"]}", "arguments": {written}}}\n</tool_call>'


def value(schema: dict[str, Any], question: str, numbers: Iterator[str]) -> Any:
    """A value of a simple schema: the question's next number, the text that it quotes, or a city."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") in ("integer", "number"):
        return int(next(numbers, "4"))
    if schema.get("type") == "boolean":
        return True
    quoted = QUOTED.search(question)
    return quoted[1] if quoted else "Athens"


@dataclass
class ScriptedModel:
    """The script of a fake worker. `unfit`: questions whose grammar allows none of the answers."""

    folder: Path
    unfit: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self.vocabulary: Vocabulary = load_vocabulary(self.folder, VOCAB_SIZE)

    def __call__(self, assign: Assign, choice: int) -> Iterable[int]:
        asked = read(self.tokenizer.decode(list(assign.prompt_ids), skip_special_tokens=False))
        for answer in answers(asked):
            token_ids = self.tokenizer.encode(answer, add_special_tokens=False).ids
            if self._allows(assign.grammar, token_ids):
                return [*token_ids, EOS][: assign.sampling.max_tokens]
        self.unfit.append(asked.question)
        return [EOS]

    def _allows(self, grammar: str, token_ids: list[int]) -> bool:
        if not grammar:
            return True
        matcher = LLMatcher(self.vocabulary.tokenizer, grammar, log_level=0, limits=limits(grammar))
        whole = [*token_ids, self.vocabulary.num_tokens]  # behind the model's tokens comes the end of an answer
        return bool(matcher.validate_tokens(whole) == len(whole))
