"""The grammar that a request asks for: which field does, and what it says. gateway/grammar_checks.py has it tried."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.grammar_fields import GrammarFields
from protocol.errors import BadRequest
from protocol.grammar import MAX_GRAMMAR_CHARS


@dataclass(frozen=True)
class Asked:
    """What a field asks for. `kind`: json, regex, choice, ebnf or tags; `source`: the value."""

    field: str
    kind: str
    source: Any
    compact: bool = False

    @property
    def param(self) -> str:
        """The field of the body that has it."""
        return self.field.partition(".")[0]

    @property
    def key(self) -> str:
        """The same for the same grammar in the same field."""
        return f"{self.field} {self.kind} {self.compact} {json.dumps(self.source)}"


def asks(request: GrammarFields) -> bool:
    """Whether the request asks for a grammar."""
    return next(_all_asked(request), None) is not None


def asked(request: GrammarFields) -> Asked | None:
    """What the request asks for; None if nothing. BadRequest for two grammars, unless they are the same in two fields,
    or for one without what it needs."""
    found = list(_all_asked(request))
    if not found:
        return None
    for other in found[1:]:
        if replace(other, field=found[0].field) != found[0]:
            raise refusal(other.field, f"got a grammar beside {found[0].field}, expected one of them")
    if _is_longer(found[0].source, MAX_GRAMMAR_CHARS):
        raise refusal(found[0].field, f"has more than {MAX_GRAMMAR_CHARS} characters, expected at most so many")
    return found[0]


def _is_longer(value: Any, most: int) -> bool:
    """Whether a value has more characters as JSON, at least. It looks no further than it must."""
    size, left = 0, [value]
    while left and size <= most:
        each = left.pop()
        size += len(each) if isinstance(each, str) else 1
        if isinstance(each, dict):
            left += [*each, *each.values()]
        elif isinstance(each, list):
            left += each
    return size > most


def _all_asked(request: GrammarFields) -> Iterator[Asked]:
    if (wanted := request.response_format) is not None and wanted.type != "text":
        yield _of_format(request)
    if (outputs := request.structured_outputs) is not None:
        yield from _of_fields(
            "structured_outputs.",
            bool(outputs.disable_any_whitespace),
            json=outputs.json_,
            regex=outputs.regex,
            choice=outputs.choice,
            grammar=outputs.grammar,
            structural_tag=outputs.structural_tag,
        )
        if outputs.json_object:
            compact = bool(outputs.disable_any_whitespace)
            yield Asked("structured_outputs.json_object", "json", {"type": "object"}, compact)
    names = "guided_json guided_regex guided_choice guided_grammar json_schema regex ebnf structural_tag".split()
    yield from _of_fields("", False, **{name: getattr(request, name) for name in names})


KINDS: Final = {
    **dict.fromkeys(("json", "guided_json", "json_schema"), "json"),
    **dict.fromkeys(("regex", "guided_regex"), "regex"),
    **dict.fromkeys(("choice", "guided_choice"), "choice"),
    **dict.fromkeys(("grammar", "guided_grammar", "ebnf"), "ebnf"),
    "structural_tag": "tags",
}


def _of_fields(prefix: str, compact: bool, **values: Any) -> Iterator[Asked]:
    """Fields that are there. An empty text, and an empty list, ask for nothing."""
    for name, value in values.items():
        if value is not None and value not in ("", []):
            yield Asked(prefix + name, KINDS[name], value, compact)


def _of_format(request: GrammarFields) -> Asked:
    wanted = request.response_format
    assert wanted is not None
    if wanted.type == "json_object":
        return Asked("response_format", "json", {"type": "object"})
    if wanted.type == "structural_tag":
        return Asked("response_format", "tags", {"type": "structural_tag", **(wanted.model_extra or {})})
    if wanted.json_schema is None:
        raise refusal(
            "response_format", "got the type 'json_schema' without json_schema, expected the schema beside it"
        )
    schema = wanted.json_schema.schema_
    return Asked("response_format", "json", {"type": "object"} if schema is None else schema)


def refusal(name: str, what: str) -> BadRequest:
    """The error for a grammar in the field `name`."""
    return BadRequest(f"{name}: {what}", param=name.partition(".")[0])
