"""JSON schemas within grammars, each made strict as one that is asked for alone. They stand in Lark's spelling
(gateway/generation/grammars/lark.py) and in llguidance's own form:

    {"grammars": [{"lark_grammar": "start: @a"}, {"name": "a", "json_schema": {"type": "integer"}}]}
"""

import json
from collections.abc import Callable
from typing import Any, Final

from gateway.generation.grammars.patterns import OPTIONS
from gateway.generation.grammars.schemas import strict_schema
from gateway.words.complaints import short

_SEPARATORS: Final = {"item_separator": ",", "key_separator": ":"}


def embedded_schema(schema: Any, *, compact: bool) -> dict[str, Any]:
    """The schema for llguidance. ValueError says what of it cannot be followed. Of llguidance's own options, which
    guidance sends with each schema, those are kept that say where spaces stand."""
    if not isinstance(schema, dict) or OPTIONS not in schema:
        return strict_schema(schema, compact=compact)
    options = _options(schema[OPTIONS])
    schema = {key: value for key, value in schema.items() if key != OPTIONS}
    strict = strict_schema(schema, compact=compact or options.get("whitespace_flexible") is False)
    separators = {} if compact else {name: options[name] for name in _SEPARATORS if name in options}
    return {**strict, OPTIONS: {**strict[OPTIONS], **separators}}


def _options(given: Any) -> dict[str, Any]:
    """Those that say where spaces stand. A `oneOf` with overlapping parts is refused, whatever `coerce_one_of` says."""
    if not isinstance(given, dict):
        raise ValueError(f"{OPTIONS}: expected an object")
    options: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or name == "coerce_one_of" or (name == "lenient" and value is False):
            continue
        if name != "whitespace_flexible" and name not in _SEPARATORS:
            raise ValueError(f"{OPTIONS}: the option {name[:40]!r} is not supported")
        mark = _SEPARATORS.get(name)
        if mark and (not isinstance(value, str) or value.strip(" \t\r\n") != mark):
            raise ValueError(f"{OPTIONS}: got {name} {short(value)}, expected {mark!r} and spaces")
        options[name] = value
    return options


def strict_form(source: str, of_lark: Callable[[str], str], *, compact: bool) -> str:
    """Reads a grammar in llguidance's own form, and writes it again with each schema made strict. ValueError names the
    entry. `of_lark` makes the schemas of a grammar in Lark's spelling strict."""
    form = _given(json.loads(source))
    grammars = form.pop("grammars", None)
    if form or not isinstance(grammars, list) or not grammars:
        others = f", got {', '.join(form)[:40]}" if form else ""
        raise ValueError(f"expected an object with a list `grammars`{others}")
    strict: list[dict[str, Any]] = []
    for index, entry in enumerate(grammars):
        grammar = _given(entry)
        try:
            match grammar:
                case {"json_schema": schema} if grammar.keys() <= {"name", "json_schema"}:
                    strict.append({**grammar, "json_schema": embedded_schema(schema, compact=compact)})
                case {"lark_grammar": str(lark)} if grammar.keys() <= {"name", "lark_grammar"}:
                    strict.append({**grammar, "lark_grammar": of_lark(lark)})
                case _:
                    raise ValueError("expected `json_schema` or `lark_grammar`, and a `name`")
        except ValueError as error:
            raise ValueError(f"grammars[{index}]: {error}") from error
    return json.dumps({"grammars": strict})


def _given(fields: Any) -> dict[str, Any]:
    """The fields of an object that say anything. What is no object has none."""
    items = fields.items() if isinstance(fields, dict) else ()
    return {name: value for name, value in items if value is not None}
