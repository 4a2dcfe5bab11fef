"""The page `/docs`: what /openapi.json says, for people. One HTML text without scripts and without other files, so that
it also works where there is no internet."""

import json
from typing import Any

from jinja2 import Environment

from gateway.app.openapi_rules import NOT_SUPPORTED
from gateway.dialects.shared.sampling_fields import INT32

Schema = dict[str, Any]
DOCS_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
KINDS = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "true or false",
    "object": "object",
    "array": "list",
}
BOUNDS = {  # of numbers and texts
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "not empty",  # no text or list has to be longer
    "maxLength": "at most {} characters",
    "minItems": "not empty",
    "maxItems": "at most {} items",
}


Field = tuple[str, bool, Schema]  # its name, whether it is required, what is told of it


def docs_page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    operations = [
        (f"{method}{path}".translate(str.maketrans("/{}", "---")), method.upper(), path, told)
        for path, of_path in document["paths"].items()
        for method, told in of_path.items()
    ]
    contents = [_content(told) for _, _, _, told in operations]
    bodies = {kind_of(content["schema"]) for content in contents if content}
    schemas = document["components"]["schemas"]
    return _PAGE.render(title=document["info"]["title"], operations=operations, schemas=schemas, bodies=bodies)


def kind_of(schema: Schema) -> str:
    """What a schema allows, in words: `integer, at least 1, at most 64`. Leaves null out, which means absent."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema or "const" in schema:
        values = [value for value in schema.get("enum", [schema.get("const")]) if value is not None]
        return " or ".join(map(_json, values)) or "null"
    if "anyOf" in schema:
        return ", or ".join(kind_of(option) for option in schema["anyOf"] if option != {"type": "null"})

    kind = KINDS.get(schema.get("type", ""), "any value")
    if kind == "list" and schema.get("items"):
        kind = f"list of ({kind_of(schema['items'])})"
    bounds = [words.format(schema[name]) for name, words in BOUNDS.items() if _is_worth_saying(schema.get(name))]
    return ", ".join([kind, *bounds])


def _is_worth_saying(bound: float | None) -> bool:
    """Whether a bound is there, and not merely that of the type."""
    return bound is not None and abs(bound) < INT32


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _content(operation: dict[str, Any]) -> dict[str, Any] | None:
    """The body that an operation takes."""
    content: dict[str, Any] | None = operation.get("requestBody", {}).get("content", {}).get("application/json")
    return content


def _parameters(operation: dict[str, Any]) -> list[Field]:
    told = operation.get("parameters", ())
    return [
        (f"{parameter['name']} ({parameter['in']})", parameter.get("required", False), parameter["schema"])
        for parameter in told
    ]


def _fields(schema: Schema, supported: bool) -> list[Field]:
    """The fields of a schema that are supported, or those that are not. Required ones come first."""
    required = schema.get("required", ())
    fields = [(name, name in required, told) for name, told in schema["properties"].items()]
    wanted = [row for row in fields if row[2]["description"].startswith(NOT_SUPPORTED) != supported]
    return sorted(wanted, key=lambda field: not field[1])


def _names(response: dict[str, Any]) -> list[str]:
    """The names of the schemas that a response may have, beside lists of them."""
    schemas = [content["schema"] for content in response.get("content", {}).values()]
    alternatives = [option for schema in schemas for option in schema.get("anyOf", [schema])]
    return [kind_of(schema) for schema in alternatives if "$ref" in schema]


_ENVIRONMENT = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters["json"] = _json
_ENVIRONMENT.globals |= {
    "kind_of": kind_of,
    "content_of": _content,
    "parameters_of": _parameters,
    "fields_of": _fields,
    "names_of": _names,
}
_PAGE = _ENVIRONMENT.from_string("""\
{% macro said(text) %}
{% for part in text.split("`") %}
{%+ if loop.index is odd %}{{ part }}{% else %}<code>{{ part }}</code>{% endif %}
{% endfor %}
{% endmacro %}
{% macro table(fields) %}
<table>
<tr><th>field</th><th>value</th><th>meaning</th><th>example</th></tr>
{% for name, is_required, told in fields %}
<tr><td><code>{{ name }}</code>{% if is_required %}<br><b>required</b>{% endif %}</td>
<td>{{ kind_of(told) }}</td><td>{{ said(told.description) }}</td>
<td><code>{{ told.examples | map("json") | join(" or ") }}</code></td></tr>
{% endfor %}
</table>
{% endmacro %}
{% macro tables(schema) %}
{{ table(fields_of(schema, True)) }}
{% set refused = fields_of(schema, False) %}
{% if refused %}
<details><summary>{{ refused | length }} fields that are not supported</summary>
<p>Clients of other servers know them. The values shown change nothing and are accepted; others are refused.</p>
{{ table(refused) }}
</details>
{% endif %}
{% endmacro %}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{ title }}: HTTP API</title>
<style>
body { font: 15px/1.5 sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; color: #222; background: #fff }
code, pre { font: 13px/1.4 monospace; overflow-wrap: anywhere }
pre { background: #f3f3f0; padding: .8em; white-space: pre-wrap }
h2 { margin-top: 2em; border-top: 1px solid #ccc; padding-top: .8em }
summary { cursor: pointer; color: #0a5c36 }
h2 b { color: #0a5c36 }
table { border-collapse: collapse; width: 100%; margin: .6em 0 }
th, td { text-align: left; vertical-align: top; padding: .3em .8em .3em 0; border-bottom: 1px solid #e4e4e0 }
td:first-child { white-space: nowrap }
a { color: #0a5c36 }
</style>
</head>
<body>
<h1>{{ title }}: HTTP API</h1>
<p>For programs: <a href="/openapi.json">/openapi.json</a>. Values show the limits of this gateway and its workers
at this moment. A field may be null, which means absent. Unknown fields are ignored,
unless a letter is wrong in a known one.</p>
<ul>
{% for anchor, method, path, told in operations %}
<li><a href="#{{ anchor }}"><b>{{ method }}</b> {{ path }}</a>: {{ told.description }}</li>
{% endfor %}
</ul>
{% for anchor, method, path, told in operations %}
<h2 id="{{ anchor }}"><b>{{ method }}</b> {{ path }}</h2>
<p>{{ told.description }}</p>
{% if told.parameters %}{{ table(parameters_of(told)) }}{% endif %}
{% set content = content_of(told) %}
{% if content %}
{% set body = kind_of(content.schema) %}
<pre>curl -s http://HOST:PORT{{ path }} -H 'Content-Type: application/json' -d '{{ content.example | json }}'</pre>
<h3 id="{{ body }}">The body: {{ body }}</h3>
{{ tables(schemas[body]) }}
{% endif %}
<details{{ " open" if content }}><summary>Answers</summary>
<table>
<tr><th>status</th><th>when</th><th>body</th></tr>
{% for status, answer in told.responses.items() %}
<tr><td>{{ status }}</td><td>{{ said(answer.description) }}</td>
<td>{% for name in names_of(answer) %}<a href="#{{ name }}">{{ name }}</a>{{ ", " if not loop.last }}{% endfor %}</td>
</tr>
{% endfor %}
</table>
</details>
{% endfor %}
<h2>Parts of bodies and answers</h2>
{% for name, schema in schemas.items() if name not in bodies %}
<h3 id="{{ name }}">{{ name }}</h3>
<p>{{ said(schema.description) }}</p>
{{ tables(schema) }}
{% endfor %}
</body>
</html>
""")
