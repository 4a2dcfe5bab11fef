"""Fields of a body that say which grammar the answer follows: OpenAI's, vLLM's and SGLang's, and what they ask for."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, Field

from gateway.dialects.shared.sampling_fields import told as _told
from gateway.words.places import SHAPE, SOURCE, Origin, Origins
from gateway.words.request import Grammar
from protocol.errors import BadRequest
from protocol.grammar import MAX_GRAMMAR_CHARS

MAX_CHOICES = 4096  # texts of a choice
GrammarSource = Annotated[str, Field(max_length=MAX_GRAMMAR_CHARS)]
Choices = Annotated[list[GrammarSource], Field(fail_fast=True, max_length=MAX_CHOICES)]
Schema = GrammarSource | bool | dict[str, Any]
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<call>", "schema": {"type": "object"}, "end": "</call>"}],
    "triggers": ["<call>"],
}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

NAMED = {"name": "person", "schema": SCHEMA}
OBJECT: Final = Grammar("json", {"type": "object"})
KINDS: Final = {
    **dict.fromkeys(("json", "guided_json", "json_schema"), "json"),
    **dict.fromkeys(("regex", "guided_regex"), "regex"),
    **dict.fromkeys(("choice", "guided_choice"), "choice"),
    **dict.fromkeys(("grammar", "guided_grammar", "ebnf"), "ebnf"),
    "structural_tag": "tags",
}


class Asked(NamedTuple):
    """A grammar, and the field that asks for it."""

    field: str
    grammar: Grammar

    def origins(self, inside: str = "") -> Origins:
        """How the client writes the places of this grammar. `inside`: what stands before the field."""
        first = inside + self.field.partition(".")[0]
        return {SHAPE: Origin(first, first, first), SOURCE: Origin(inside + self.field, first, self.field)}


class NamedSchema(BaseModel, strict=True):
    """A JSON schema, as OpenAI's API wraps it."""

    name: Annotated[str | None, _told("Accepted and not used.", "person")] = None
    description: Annotated[str | None, _told("Accepted and not used.", "A person.")] = None
    schema_: Annotated[
        dict[str, Any] | bool | None, Field(alias="schema"), _told("The schema. Absent: any JSON object.", SCHEMA)
    ] = None
    strict: Annotated[bool | None, _told("Accepted and not used: answers always follow the schema.", True)] = None


class ResponseFormat(BaseModel, strict=True, extra="allow"):
    """What the answer is. The other fields of a structural tag stand beside its type."""

    type: Annotated[
        Literal["text", "json_object", "json_schema", "structural_tag"], _told("`text`: anything.", "json_schema")
    ]
    json_schema: Annotated[NamedSchema | None, _told("With the type `json_schema`: which one.", NAMED)] = None


class StructuredOutputs(BaseModel, strict=True, extra="forbid"):
    """vLLM's object: one of its fields says what the answer follows."""

    json_: Annotated[Schema | None, Field(alias="json"), _told("A JSON schema.", SCHEMA)] = None
    regex: Annotated[GrammarSource | None, _told("A regular expression for the whole answer.", "[0-9]{4}")] = None
    choice: Annotated[Choices | None, _told("The answer is one of these texts.", ["yes", "no"])] = None
    grammar: Annotated[GrammarSource | None, _told("A grammar in EBNF.", 'root ::= "yes" | "no"')] = None
    json_object: Annotated[bool | None, _told("Any JSON object.", True)] = None
    structural_tag: Annotated[GrammarSource | dict[str, Any] | None, _told("As the field of that name.", TAG)] = None
    disable_any_whitespace: Annotated[bool | None, _told("JSON without white space between its parts.", False)] = None

    def grammars(self) -> Iterator[Asked]:
        """Those that are asked for."""
        compact = bool(self.disable_any_whitespace)
        found = {
            "json": self.json_,
            "regex": self.regex,
            "choice": self.choice,
            "grammar": self.grammar,
            "structural_tag": self.structural_tag,
        }
        yield from _of_fields(found, "structured_outputs.", compact)
        if self.json_object:
            yield Asked("structured_outputs.json_object", Grammar("json", {"type": "object"}, compact))


class SglangGrammars(BaseModel, strict=True, allow_inf_nan=False):
    """SGLang's fields."""

    json_schema: Annotated[Schema | None, _told("A JSON schema that the answer follows.", SCHEMA)] = None
    regex: Annotated[GrammarSource | None, _told("A regular expression for the whole answer.", "[0-9]{4}")] = None
    ebnf: Annotated[
        GrammarSource | None, _told("A grammar in EBNF, in GBNF's or Lark's spelling.", 'root ::= "yes" | "no"')
    ] = None
    structural_tag: Annotated[
        GrammarSource | dict[str, Any] | None,
        _told("Text in which each part between a `begin` and its `end` follows a JSON schema.", TAG),
    ] = None

    def grammars(self) -> Iterator[Asked]:
        """Those that are asked for."""
        names = ("json_schema", "regex", "ebnf", "structural_tag")
        yield from _of_fields({name: getattr(self, name) for name in names})


class GrammarFields(SglangGrammars):
    """At most one of these may ask for a grammar."""

    response_format: Annotated[
        ResponseFormat | None,
        _told("What the answer is: text, any JSON object, or a schema's.", {"type": "text"}),
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, _told("What the answer follows, as vLLM has it.", {"choice": ["yes", "no"]})
    ] = None
    guided_json: Annotated[Schema | None, _told("A JSON schema that the answer follows.", SCHEMA)] = None
    guided_regex: Annotated[GrammarSource | None, _told("A regular expression for the whole answer.", "[0-9]{4}")] = (
        None
    )
    guided_choice: Annotated[Choices | None, _told("The answer is one of these texts.", ["yes", "no"])] = None
    guided_grammar: Annotated[
        GrammarSource | None, _told("A grammar in EBNF, in GBNF's or Lark's spelling.", 'root ::= "yes" | "no"')
    ] = None

    def grammars(self) -> Iterator[Asked]:
        """Those that are asked for. BadRequest for one without what it needs."""
        if self.response_format is not None and self.response_format.type != "text":
            yield Asked("response_format", _of_format(self.response_format))
        if self.structured_outputs is not None:
            yield from self.structured_outputs.grammars()
        names = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
        yield from _of_fields({name: getattr(self, name) for name in names})
        yield from super().grammars()


def only_grammar(found: Iterable[Asked], inside: str = "") -> Asked | None:
    """What a request asks for; None if nothing. BadRequest for two grammars, unless they are the same in two fields.
    `inside`: what stands before the names of the fields in errors."""
    all_found = list(found)
    if not all_found:
        return None
    first = all_found[0]
    for other in all_found[1:]:
        if other.grammar != first.grammar:
            raise _refusal(other.field, f"got a grammar beside {first.field}, expected one of them", inside)
    if _is_longer(first.grammar.source, MAX_GRAMMAR_CHARS):
        what = f"has more than {MAX_GRAMMAR_CHARS} characters, expected at most so many"
        raise _refusal(first.field, what, inside)
    return first


def _refusal(name: str, what: str, inside: str = "") -> BadRequest:
    return BadRequest(f"{inside}{name}: {what}", param=inside + name.partition(".")[0])


def _is_longer(value: Any, most: int) -> bool:
    """Whether a value has more characters as JSON, at least. It looks no further than it must."""
    size, left = 0, [value]
    while left and size <= most:
        item = left.pop()
        size += len(item) if isinstance(item, str) else 1
        if isinstance(item, dict):
            left += [*item, *item.values()]
        elif isinstance(item, list):
            left += item
    return size > most


def _of_fields(values: dict[str, Any], prefix: str = "", compact: bool = False) -> Iterator[Asked]:
    """Fields that are there. An empty text, and an empty list, ask for nothing."""
    for name, value in values.items():
        if value is not None and value not in ("", []):
            yield Asked(prefix + name, Grammar(KINDS[name], value, compact))


def _of_format(wanted: ResponseFormat) -> Grammar:
    if wanted.type == "json_object":
        return OBJECT
    if wanted.type == "structural_tag":
        return Grammar("tags", {"type": "structural_tag", **(wanted.model_extra or {})})
    if wanted.json_schema is None:
        raise _refusal(
            "response_format", "got the type 'json_schema' without json_schema, expected the schema beside it"
        )
    schema = wanted.json_schema.schema_
    return OBJECT if schema is None else Grammar("json", schema)
