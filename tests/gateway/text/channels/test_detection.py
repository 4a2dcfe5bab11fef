import pytest

from gateway.text.channels.detection import ArgumentsForm, Message, detect
from gateway.text.channels.formats import GLM, HERMES, MINIMAX_M1, MINIMAX_M2, QWEN3_CODER, SEED, SEED_THINK, THINK
from gateway.text.channels.readers import Format
from tests.gateway.text.channels import templates
from tests.gateway.text.channels.templates import renderer


@pytest.mark.parametrize(
    ("source", "form", "arguments"),
    [
        (templates.HERMES, Format(HERMES), "object"),
        (templates.QWEN, Format(HERMES, THINK), "object"),
        (templates.QWEN_OF_TEXT, Format(HERMES), "text"),
        (templates.QWEN_CODER, Format(QWEN3_CODER), "object"),
        (templates.MINIMAX, Format(MINIMAX_M2, THINK), "object"),
        (templates.GLM, Format(GLM, THINK), "object"),
        (templates.SEED, Format(SEED), "object"),
        (templates.HERMES.replace("tool_call>", "tool_calls>"), Format(MINIMAX_M1), "object"),
        (templates.R1, Format(None, THINK), "object"),
        (templates.CHAT_ONLY, Format(), "object"),
        ("{{ messages[0].content }}", Format(), "object"),
    ],
    ids=[
        "hermes",
        "qwen",
        "qwen of text",
        "qwen-coder",
        "minimax",
        "glm",
        "seed",
        "minimax m1",
        "r1",
        "refuses calls",
        "shows no calls",
    ],
)
def test_the_format_of_a_template(source: str, form: Format, arguments: ArgumentsForm) -> None:
    assert detect(renderer(source)) == (form, arguments)


def test_a_template_that_takes_both_forms_gets_objects() -> None:
    both = templates.HERMES.replace(
        "(call.function.arguments | tojson)",
        "(call.function.arguments if call.function.arguments is string else call.function.arguments | tojson)",
    )
    assert detect(renderer(both)) == (Format(HERMES), "object")


def test_a_template_that_writes_part_of_a_call_has_no_format() -> None:
    """What is shown of the arguments must be all of them."""
    for source in (
        templates.HERMES.replace("(call.function.arguments | tojson)", "'{}'"),
        templates.HERMES.replace("(call.function.arguments | tojson)", "(call.function.arguments | tojson)[:20]"),
        templates.HERMES.replace("call.function.name", "'another'"),
    ):
        assert source != templates.HERMES
        assert detect(renderer(source)).format == Format()


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_have_several_names(field: str) -> None:
    source = templates.QWEN.replace("reasoning_content", field)
    assert detect(renderer(source)).format.reasoning == THINK


def test_thoughts_have_several_tags() -> None:
    source = templates.QWEN.replace("think>", "seed:think>")
    assert detect(renderer(source)).format.reasoning == SEED_THINK


@pytest.mark.parametrize(
    ("end", "thinks"),
    [("<think>\\n", True), ("<think>\\n\\n</think>\\n\\n", True), ("think", False), ("</think>", False)],
)
def test_thoughts_are_told_by_the_end_of_a_prompt(end: str, thinks: bool) -> None:
    source = templates.HERMES + "{{- '" + end + "' }}"
    assert (detect(renderer(source)).format.reasoning == THINK) is thinks


def test_a_call_is_looked_for_in_what_is_rendered_alone() -> None:
    """Messages that show how calls are written are none."""
    asked: list[list[Message]] = []

    def render(messages: list[Message], tools: list[Message]) -> str:
        asked.append(messages)
        return '<tool_call>\n{"name": "example", "arguments": {}}\n</tool_call>'

    assert detect(render) == (Format(), "object")
    assert any("tool_calls" in message for messages in asked for message in messages)
