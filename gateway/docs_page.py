"""The page `/docs`: what /openapi.json says, for people. One HTML text without scripts and without other files, so that
it also works where there is no internet."""

import json
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment

from gateway.openapi_rules import NOT_SUPPORTED
from gateway.sampling_fields import INT32

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


@dataclass(frozen=True)
class Row:
    """One field, as the page shows it."""

    name: str
    is_required: bool
    kind: str
    description: str
    example: str


@dataclass(frozen=True)
class Table:
    """One schema, as the page shows it."""

    name: str
    description: str
    rows: list[Row]
    not_supported: list[Row]


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    anchor: str
    method: str
    path: str
    description: str
    body: Table | None  # None if it takes none
    example: str  # a body
    parameters: list[Row]
    answers: list[tuple[str, str, list[str]]]  # status, when, names of schemas


def docs_page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    tables = {name: _table(name, schema) for name, schema in document["components"]["schemas"].items()}
    operations = [
        _operation(path, method, told, tables)
        for path, of_path in document["paths"].items()
        for method, told in of_path.items()
    ]
    bodies = [each.body for each in operations if each.body is not None]
    others = [table for table in tables.values() if table not in bodies]
    return _PAGE.render(title=document["info"]["title"], operations=operations, tables=others)


def kind_of(schema: Schema) -> str:
    """What a schema allows, in words: `integer, at least 1, at most 64`. Leaves null out, which means absent."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema or "const" in schema:
        values = [each for each in schema.get("enum", [schema.get("const")]) if each is not None]
        return " or ".join(json.dumps(each, ensure_ascii=False) for each in values) or "null"
    if "anyOf" in schema:
        return ", or ".join(kind_of(each) for each in schema["anyOf"] if each != {"type": "null"})

    kind = KINDS.get(schema.get("type", ""), "any value")
    if kind == "list" and schema.get("items"):
        kind = f"list of ({kind_of(schema['items'])})"
    bounds = [words.format(schema[name]) for name, words in BOUNDS.items() if _is_worth_saying(schema.get(name))]
    return ", ".join([kind, *bounds])


def _is_worth_saying(bound: float | None) -> bool:
    """Whether a bound is there, and not merely that of the type."""
    return bound is not None and abs(bound) < INT32


def _operation(path: str, method: str, told: dict[str, Any], tables: dict[str, Table]) -> Operation:
    content = told.get("requestBody", {}).get("content", {}).get("application/json")
    return Operation(
        anchor=f"{method}{path}".translate(str.maketrans("/{}", "---")),
        method=method.upper(),
        path=path,
        description=told.get("description", ""),
        body=tables[kind_of(content["schema"])] if content else None,
        example=json.dumps(content["example"], ensure_ascii=False) if content else "",
        parameters=[_parameter(each) for each in told.get("parameters", ())],
        answers=[(status, each["description"], _names(each)) for status, each in told["responses"].items()],
    )


def _parameter(told: dict[str, Any]) -> Row:
    schema = told["schema"]
    example = told.get("example", next(iter(schema.get("examples", [""]))))
    is_required = told.get("required", False)
    return Row(f"{told['name']} ({told['in']})", is_required, kind_of(schema), told["description"], str(example))


def _table(name: str, schema: Schema) -> Table:
    rows = {
        field: Row(
            field,
            field in schema.get("required", ()),
            kind_of(told),
            told["description"],
            " or ".join(json.dumps(each, ensure_ascii=False) for each in told["examples"]),
        )
        for field, told in schema["properties"].items()
    }
    refused = [row for row in rows.values() if row.description.startswith(NOT_SUPPORTED)]
    served = sorted((row for row in rows.values() if row not in refused), key=lambda row: not row.is_required)
    return Table(name, schema["description"], served, refused)


def _names(response: dict[str, Any]) -> list[str]:
    """The names of the schemas that a response may have, beside lists of them."""
    schemas = [each["schema"] for each in response.get("content", {}).values()]
    alternatives = [each for schema in schemas for each in schema.get("anyOf", [schema])]
    return [kind_of(schema) for schema in alternatives if "$ref" in schema]


_PAGE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
{% macro said(text) %}
{% for part in text.split("`") %}
{%+ if loop.index is odd %}{{ part }}{% else %}<code>{{ part }}</code>{% endif %}
{% endfor %}
{% endmacro %}
{% macro fields(rows) %}
<table>
<tr><th>field</th><th>value</th><th>meaning</th><th>example</th></tr>
{% for row in rows %}
<tr><td><code>{{ row.name }}</code>{% if row.is_required %}<br><b>required</b>{% endif %}</td>
<td>{{ row.kind }}</td><td>{{ said(row.description) }}</td><td><code>{{ row.example }}</code></td></tr>
{% endfor %}
</table>
{% endmacro %}
{% macro refused(rows) %}
<details><summary>{{ rows | length }} fields that are not supported</summary>
<p>Clients of other servers know them. The values shown change nothing and are accepted; others are refused.</p>
{{ fields(rows) }}
</details>
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
{% for each in operations %}
<li><a href="#{{ each.anchor }}"><b>{{ each.method }}</b> {{ each.path }}</a>: {{ each.description }}</li>
{% endfor %}
</ul>
{% for each in operations %}
<h2 id="{{ each.anchor }}"><b>{{ each.method }}</b> {{ each.path }}</h2>
<p>{{ each.description }}</p>
{% if each.parameters %}{{ fields(each.parameters) }}{% endif %}
{% if each.body %}
<pre>curl -s http://HOST:PORT{{ each.path }} -H 'Content-Type: application/json' -d '{{ each.example }}'</pre>
<h3 id="{{ each.body.name }}">The body: {{ each.body.name }}</h3>
{{ fields(each.body.rows) }}
{{ refused(each.body.not_supported) }}
{% endif %}
<details{{ " open" if each.body }}><summary>Answers</summary>
<table>
<tr><th>status</th><th>when</th><th>body</th></tr>
{% for status, when, names in each.answers %}
<tr><td>{{ status }}</td><td>{{ said(when) }}</td>
<td>{% for name in names %}<a href="#{{ name }}">{{ name }}</a>{{ ", " if not loop.last }}{% endfor %}</td></tr>
{% endfor %}
</table>
</details>
{% endfor %}
<h2>Parts of bodies and answers</h2>
{% for table in tables %}
<h3 id="{{ table.name }}">{{ table.name }}</h3>
<p>{{ said(table.description) }}</p>
{{ fields(table.rows) }}
{% if table.not_supported %}{{ refused(table.not_supported) }}{% endif %}
{% endfor %}
</body>
</html>
""")
