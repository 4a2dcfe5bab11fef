"""Workers with the bundled model draw calls of tools that follow a grammar, and a decode worker goes on with them."""

import json
from functools import cache
from typing import Any, Final

import jsonschema
import pytest

from gateway.generation.grammars.trials import Trials
from gateway.generation.tool_grammars import grammar_of_calls
from gateway.text.channels.channels import Channels
from gateway.text.channels.fold import WholeCall, fold
from gateway.text.channels.json_calls import JsonCalls
from gateway.text.channels.markers import Markers
from gateway.text.channels.readers import Format
from gateway.words.events import Event
from gateway.words.request import Conversation, Tool
from model.runner import ModelRunner
from models.train.train import STORY_FOLDER
from protocol.messages_gateway import FinishReason, SamplingParams
from runtime.vocabulary import Vocabulary, load_vocabulary
from scheduler.execution.grammars import AnswerGrammars
from tests.cluster import Cluster
from tests.doubles.clock import VirtualClock
from tests.grammars import name_of

FORM: Final = Format(JsonCalls(opening="<|im_start|>"))  # a token of the bundled model opens a call, letters close it
OPENING, EOS = 1, 2
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "exact": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Final = (Tool("weather", schema=SCHEMA), Tool("weather_of_all", schema={**SCHEMA, "required": ["exact"]}))


@cache
def runner() -> ModelRunner:
    """The bundled model."""
    return ModelRunner.load(STORY_FOLDER, device="cpu", dtype="float32", page_size=4)


@cache
def vocabulary() -> Vocabulary:
    """Its tokens."""
    return load_vocabulary(STORY_FOLDER, runner().config.vocab_size)


def calls_of(ids: list[int]) -> tuple[WholeCall, ...]:
    """The calls in an answer without its EOS token."""
    markers = Markers(FORM, {"<|im_start|>": OPENING}.get)
    schemas = {tool.name: tool.schema for tool in TOOLS}
    channels = Channels(markers, tools=schemas, is_reasoning_open=False, response_id="answer", choice=0)
    events: list[Event] = []
    for token in ids:
        text = vocabulary().tokens[token].decode()
        events += channels.marker(token) if token == OPENING else channels.text(text)
    whole = fold([*events, *channels.end()])
    assert not whole.text.strip()
    return whole.calls


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("topology", ["1U", "1P1D"])
def test_a_model_draws_whole_calls_that_follow_the_tools(topology: str, parallel: bool) -> None:
    conversation = Conversation([], tools=TOOLS, choice="required", parallel=parallel)
    asked = grammar_of_calls(FORM, ["<|im_start|>"], conversation, is_reasoning_open=False)
    assert asked is not None
    text = Trials(vocabulary(), VirtualClock()).of(asked)
    assert isinstance(text, str)

    grammars = lambda _: AnswerGrammars(vocabulary)  # noqa: E731
    cluster = Cluster(runner(), topology, page_size=4, chunk_size=16, num_pages=512, grammars=grammars)
    try:
        for seed in range(4):
            params = SamplingParams(
                max_tokens=400, temperature=1.0, seed=seed, eos_token_ids=(EOS,), grammar=name_of(text)
            )
            cluster.assign(f"call {seed}", [*range(10, 31 + seed)], params)
        cluster.run()
    finally:
        cluster.close()

    assert not cluster.failures
    drawn = set[str]()
    for answer in cluster.answers.values():
        assert answer.finish is FinishReason.STOP and answer.ids[-1] == EOS
        assert answer.ids.count(OPENING) >= 1
        calls = calls_of(answer.ids[:-1])
        assert calls and (parallel or len(calls) == 1)
        for call in calls:
            schema = next(tool.schema for tool in TOOLS if tool.name == call.name)
            jsonschema.validate(json.loads(call.arguments), schema)
            drawn.add(call.arguments)
    assert len(drawn) > 1, "answers differ by their seeds"
