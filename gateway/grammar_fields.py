"""Fields of a body that say which grammar the answer follows: OpenAI's, vLLM's and SGLang's."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from gateway.sampling_fields import told as _told
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
