"""Short chat templates of our own that write calls and thoughts as those of public models do, and what renders them."""

import json
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.text.channels.detection import Message, Render
from gateway.words.places import FIRST_PROMPT, Fault

ROLE = "{{- '<|im_start|>' ~ m.role ~ '\n' }}"
END = "{{- '<|im_end|>\n' }}"
FOR, END_FOR, CONTENT = "{%- for m in messages %}", "{%- endfor %}", "{{- m.content }}"
PROMPT = "{{- '<|im_start|>assistant\n' }}"
THOUGHTS = "{%- if m.reasoning_content %}{{- '<think>\n' ~ m.reasoning_content ~ '\n</think>\n\n' }}{%- endif %}"

JSON_TOOLS = """
{%- if tools %}{{- '<|im_start|>system\nYou may call:\n<tools>' }}{%- for tool in tools %}{{- '\n' ~ (tool | tojson) }}
{%- endfor %}{{- '\n</tools>\nIn <tool_call></tool_call>:\n<tool_call>\n{"name": <name>, "arguments": <object>}\n' }}
{{- '</tool_call><|im_end|>\n' }}{%- endif %}"""
JSON_CALLS = """
{%- for call in m.tool_calls or [] %}{%- if m.content or not loop.first %}{{- '\n' }}{%- endif %}
{{- '<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) ~ '}' }}
{{- '\n</tool_call>' }}{%- endfor %}"""
QWEN = JSON_TOOLS + FOR + ROLE + THOUGHTS + CONTENT + JSON_CALLS + END + END_FOR + PROMPT
HERMES = QWEN.replace(THOUGHTS, "")
QWEN_OF_TEXT = HERMES.replace("(call.function.arguments | tojson)", "call.function.arguments.strip()")

TAG_TOOLS = """
{%- if tools %}{{- '<|im_start|>system\nYou may call:\n<tools>' }}{%- for tool in tools %}
{{- '\n<function>\n<name>' ~ tool.function.name ~ '</name>\n</function>' }}{%- endfor %}
{{- '\n</tools>\nSo:\n<tool_call>\n<function=example>\n<parameter=first>\nvalue\n</parameter>\n</function>\n' }}
{{- '</tool_call><|im_end|>\n' }}{%- endif %}"""
TAG_CALLS = """
{%- for call in m.tool_calls or [] %}{{- '\n<tool_call>\n<function=' ~ call.function.name ~ '>\n' }}
{%- for key, value in call.function.arguments | items %}{{- '<parameter=' ~ key ~ '>\n' }}
{{- value if value is string else value | tojson }}{{- '\n</parameter>\n' }}{%- endfor %}
{{- '</function>\n</tool_call>' }}{%- endfor %}"""
QWEN_CODER = TAG_TOOLS + FOR + ROLE + CONTENT + TAG_CALLS + END + END_FOR + PROMPT

MINIMAX_CALLS = """
{%- if m.tool_calls %}{{- '\n<minimax:tool_call>\n' }}{%- for call in m.tool_calls %}
{{- '<invoke name="' ~ call.function.name ~ '">\n' }}{%- for key, value in call.function.arguments | items %}
{{- '<parameter name="' ~ key ~ '">' ~ (value if value is string else value | tojson) ~ '</parameter>\n' }}
{%- endfor %}{{- '</invoke>\n' }}{%- endfor %}{{- '</minimax:tool_call>' }}{%- endif %}"""
MINIMAX = JSON_TOOLS + FOR + ROLE + THOUGHTS + CONTENT + MINIMAX_CALLS + END + END_FOR + PROMPT + "{{- '<think>\n' }}"

LISTED_CALLS = """
{%- if m.tool_calls %}{%- if m.content %}{{- '\n' }}{%- endif %}{{- '<tool_calls>\n' }}{%- for call in m.tool_calls %}
{{- '{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) ~ '}\n' }}
{%- endfor %}{{- '</tool_calls>' }}{%- endif %}"""
MINIMAX_M1 = JSON_TOOLS + FOR + ROLE + THOUGHTS + CONTENT + LISTED_CALLS + END + END_FOR + PROMPT

PAIR_CALLS = """
{%- for call in m.tool_calls or [] %}{{- '\n<tool_call>' ~ call.function.name ~ '\n' }}
{%- for key, value in call.function.arguments | items %}{{- '<arg_key>' ~ key ~ '</arg_key>\n<arg_value>' }}
{{- value if value is string else value | tojson }}{{- '</arg_value>\n' }}{%- endfor %}
{{- '</tool_call>' }}{%- endfor %}"""
GLM = JSON_TOOLS + FOR + ROLE + THOUGHTS + CONTENT + PAIR_CALLS + END + END_FOR + PROMPT
SEED = (
    QWEN_CODER.replace("tool_call>", "seed:tool_call>")
    .replace("key ~ '>\n'", "key ~ '>'")
    .replace("'\n</parameter>\n'", "'</parameter>\n'")
)

R1 = """
{%- for m in messages %}{%- if m.tool_calls %}{%- for call in m.tool_calls %}
{{- '<|Assistant|><|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>' + call.function.name + '\n```json\n' }}
{{- call.function.arguments + '\n```<|tool_call_end|><|tool_calls_end|>' }}{%- endfor %}
{%- else %}{{- '<|' ~ m.role ~ '|>' ~ m.content.split('</think>')[-1] }}{%- endif %}{%- endfor %}
{{- '<|Assistant|><think>\n' }}"""
CHAT_ONLY = """
{%- for m in messages %}{%- if m.tool_calls %}{{- raise_exception('no tools here') }}{%- endif %}
{{- '<' ~ m.role ~ '>' ~ m.content }}{%- endfor %}"""


def renderer(source: str) -> Render:
    """Renders messages and tools with a template. Fault: the template refuses them."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    template = environment.from_string(source)

    def render(messages: list[Message], tools: list[Message]) -> str:
        try:
            return template.render(messages=messages, tools=tools)
        except (jinja2.TemplateError, TypeError, AttributeError) as error:
            raise Fault(FIRST_PROMPT, FIRST_PROMPT, f": {error}") from error

    return render


def refuse(message: str) -> None:
    """What templates call `raise_exception`."""
    raise jinja2.TemplateError(message)


def assistant(content: str, reasoning: str, calls: list[tuple[str, Any]]) -> Message:
    """A turn of the assistant as templates get it."""
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    turn: Message = {"role": "assistant", "content": content, "tool_calls": [{"function": call} for call in functions]}
    return {**turn, "reasoning_content": reasoning} if reasoning else turn
