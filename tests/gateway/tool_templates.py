"""Chat templates of our own that tell of tools, calls and results in the known forms."""

from typing import Any, Final

# Qwen 2.5 and 3, Hermes: JSON in tags, all results behind one another in one message of the user.
TAGGED_JSON: Final = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content is string %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content or '' }}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and message.content) or not loop.first %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
                {%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# Llama 3.1: indented schemas, one call a message, results as JSON.
INDENTED_JSON: Final = """
{{- bos_token }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<' + message.role + '>' + message.content | trim + '<|end|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('only single calls') }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<assistant>{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- '}<|end|>' }}
    {%- else %}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
    {%- endif %}
{%- endfor %}
"""

# Mistral: a list of calls with their ids, of nine characters.
LISTED_JSON: Final = """
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools is not none and loop.last %}
            {{- '[AVAILABLE_TOOLS][' }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != 'return' %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ', ' }}{%- endif %}
                {%- endfor %}
                {{- '}}' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}
            {%- endfor %}
            {{- '][/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[TOOL_CALLS][' }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception('ids have nine characters') }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]{"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}' }}
    {%- elif message.content is not none %}
        {{- message.role + ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""

# DeepSeek: sections, and arguments joined as text.
SECTIONS: Final = """
{%- for message in messages %}
    {%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}
        {{- '<|calls|>' }}
        {%- for call in message['tool_calls'] %}
            {{- '<|call|>' + call['type'] + '<|sep|>' + call['function']['name'] + '\\n```json\\n' }}
            {{- call['function']['arguments'] + '\\n```<|end of call|>' }}
        {%- endfor %}
    {%- elif message['content'] is not none %}
        {{- '<' + message['role'] + '>' + message['content'] }}
    {%- endif %}
{%- endfor %}
{%- for tool in tools or [] %}{{- tool.function.name + ': ' + tool.function.parameters | tojson }}{%- endfor %}
"""

# Qwen3-Coder, GLM: a tag for each argument.
TAGGED_ARGUMENTS: Final = """
{%- for tool in tools or [] %}
    {{- '<function>' + tool.function.name + '</function>' }}
    {%- for name, fields in tool.function.parameters.properties | items %}
        {{- '<parameter>' + name + ' ' + fields.type + '</parameter>' }}
    {%- endfor %}
{%- endfor %}
{%- for message in messages %}
    {{- '<' + message.role + '>' }}
    {%- if message.content is string %}{{- message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<function=' + call.function.name + '>' }}
        {%- for name, value in call.function.arguments | items %}
            {{- '<parameter=' + name + '>' }}
            {{- value if value is string else value | tojson }}
            {{- '</parameter>' }}
        {%- endfor %}
        {{- '</function>' }}
    {%- endfor %}
{%- endfor %}
"""

BY_FORM: Final = {
    "tagged JSON": TAGGED_JSON,
    "indented JSON": INDENTED_JSON,
    "listed JSON": LISTED_JSON,
    "sections": SECTIONS,
    "tagged arguments": TAGGED_ARGUMENTS,
}
TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather <b>of</b> a 'city' & its \u00e9tat.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Oslo", "S\u00e3o Paulo"]},
                    "days": {"type": "integer"},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
ARGUMENTS: Final[dict[str, Any]] = {"city": "S\u00e3o <Paulo>", "days": 3, "more": [True, None, {"a": 1.5}]}
