"""The grammar that a request asks for: which field does, and its text in llguidance's form. Compiled once to refuse
what cannot be followed, off the loop, and remembered.
"""

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

from llguidance import LLMatcher, LLTokenizer, StructTag, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from gateway.complaints import short
from gateway.grammar_fields import GrammarFields
from gateway.grammar_schemas import strict_schema
from protocol.errors import BadRequest, Overloaded
from protocol.grammar import MAX_GRAMMAR_CHARS
from runtime.grammar_limits import complaint, limits

MAX_REMEMBERED: Final = 256  # grammars that were found good or bad
MAX_REMEMBERED_CHARS: Final = 8 * 1024 * 1024  # of what was asked for, and of the texts made of it
MAX_TAGS: Final = 256
MAX_RULE_CHARS: Final = 12_000_000  # rules times characters of a GBNF grammar: their conversion takes up to a second
MAX_WAIT_S: Final = 30.0  # for the grammars of others
_LARK: Final = re.compile(r"%llguidance\b|start\s*:")  # a line of Lark's spelling begins so


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
        return _param(self.field)

    @property
    def key(self) -> str:
        """The same for the same grammar in the same field."""
        return f"{self.field} {self.kind} {self.compact} {json.dumps(self.source)}"


def asked(request: GrammarFields) -> Asked | None:
    """What the request asks for; None if nothing. BadRequest for two grammars, unless they are the same in two fields,
    or for one without what it needs."""
    found = list(_all_asked(request))
    if not found:
        return None
    for other in found[1:]:
        if replace(other, field=found[0].field) != found[0]:
            _refuse(other.field, f"got a grammar beside {found[0].field}, expected one of them")
    if _is_longer(found[0].source, MAX_GRAMMAR_CHARS):
        _refuse(found[0].field, f"has more than {MAX_GRAMMAR_CHARS} characters, expected at most so many")
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
        _refuse("response_format", "got the type 'json_schema' without json_schema, expected the schema beside it")
    schema = wanted.json_schema.schema_
    return Asked("response_format", "json", {"type": "object"} if schema is None else schema)


def _named(request: GrammarFields) -> tuple[Asked, str]:
    """What a request asks for, with its key."""
    wanted = asked(request)
    assert wanted is not None, "it asks for something"
    return wanted, wanted.key


# ---- to llguidance's form ----


def text_of(asked: Asked) -> str:
    """The grammar in the form that workers compile. BadRequest if it is none."""
    try:
        text = _text(asked)
    except Exception as error:  # noqa: BLE001 - the library's converter raises bare Exception
        _refuse(asked.field, f"cannot be followed: {_line(error)}")
    if len(text) > MAX_GRAMMAR_CHARS:
        _refuse(asked.field, f"has {len(text)} characters as a grammar, expected at most {MAX_GRAMMAR_CHARS}")
    return text


def _text(asked: Asked) -> str:
    source = asked.source
    if asked.kind == "json":
        if isinstance(source, str):
            source = json.loads(source)
        return LLMatcher.grammar_from_json_schema(strict_schema(source, compact=asked.compact))
    if asked.kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    if asked.kind == "choice":
        texts = [json.dumps(each, ensure_ascii=False) for each in source]
        # One terminal: as rules, each text would be an item of the parser, which has at most 2,000 at a time.
        return LLMatcher.grammar_from_lark(f"start: ONE\nONE: {' | '.join(texts)}")
    if asked.kind == "ebnf":
        is_own_form = source.lstrip().startswith("{")  # llguidance's; neither GBNF nor Lark begins so
        return source if is_own_form else LLMatcher.grammar_from_lark(_lark(source))
    tags = _tags(json.loads(source) if isinstance(source, str) else source)
    grammar = StructTag.to_grammar(tags, assume_special=False)
    return grammar if grammar.startswith("{") else LLMatcher.grammar_from_lark(grammar)


def _lark(source: str) -> str:
    """EBNF in Lark's spelling. Lines are looked at one by one: a pattern for the whole text takes minutes for a long
    run of line breaks, and lets no other thread run."""
    if any(_LARK.match(line.lstrip()) for line in source.split("\n")):
        return source
    num_rules = source.count("::=")
    if num_rules * len(source) > MAX_RULE_CHARS:
        most = MAX_RULE_CHARS // len(source)
        raise ValueError(f"got {num_rules} rules of {len(source)} characters in all, expected at most {most}")
    return str(gbnf_to_lark(source))


def _tags(source: Any) -> list[StructTag]:
    """The parts of a structural tag: {structures: [{begin, schema, end}], triggers: [...]}."""
    structures = source.get("structures") if isinstance(source, dict) else None
    triggers = source.get("triggers") if isinstance(source, dict) else None
    lists = (structures, triggers)
    if not all(isinstance(each, list) and 0 < len(each) <= MAX_TAGS for each in lists):
        raise ValueError(f"expected an object with 1 to {MAX_TAGS} `structures`, and as many `triggers`")
    found: list[StructTag] = []
    assert isinstance(structures, list) and isinstance(triggers, list)
    for place, each in enumerate(structures):
        if not isinstance(each, dict) or not isinstance(each.get("begin"), str) or not isinstance(each.get("end"), str):
            raise ValueError(f"structures[{place}]: expected an object with the texts `begin` and `end`")
        schema = each.get("schema")
        if not isinstance(schema, dict | bool):
            raise ValueError(f"structures[{place}]: expected a JSON schema in `schema`")
        starts = [one for one in triggers if isinstance(one, str) and one and each["begin"].startswith(one)]
        if not starts:
            raise ValueError(f"structures[{place}]: its begin starts with none of the triggers")
        grammar = strict_schema(schema)
        found.append(StructTag(trigger=max(starts, key=len), begin=each["begin"], grammar=grammar, end=each["end"]))
    return found


# ---- what was found of them ----


class _Bytes:
    """A vocabulary of single bytes: enough to compile with."""

    bos_token_id, eos_token_id = None, 256
    tokens, special_token_ids = (*(bytes([byte]) for byte in range(256)), b"<|end|>"), (256,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@dataclass(eq=False)
class GrammarChecks:
    """Of one gateway. Compiles one grammar at a time, in a thread: other requests and streams go on."""

    _known: "OrderedDict[str, str | BadRequest]" = field(default_factory=OrderedDict)
    _num_chars: int = 0  # of these
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tokenizer: LLTokenizer = field(default_factory=lambda: LLTokenizer(TokenizerWrapper(_Bytes())))

    async def text_of(self, request: GrammarFields) -> str:
        """The text of the grammar that a request asks for; "" if it asks for none. BadRequest if it cannot be
        followed, Overloaded if those of others take too long."""
        if next(_all_asked(request), None) is None:
            return ""
        wanted, key = await asyncio.to_thread(_named, request)
        if key not in self._known:
            async with self._turn():
                if key not in self._known:
                    self._known[key] = await asyncio.to_thread(self.check, wanted)
                    self._num_chars += _num_chars(key, self._known[key])
        self._known.move_to_end(key)
        found = self._known[key]
        while len(self._known) > MAX_REMEMBERED or self._num_chars > MAX_REMEMBERED_CHARS:
            self._num_chars -= _num_chars(*self._known.popitem(last=False))
        if isinstance(found, BadRequest):
            raise BadRequest(found.message, param=found.param)
        return found

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Waits for the grammars of others."""
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                await self._one.acquire()
        except TimeoutError:
            raise Overloaded(f"the grammars of others have been checked for {MAX_WAIT_S:g} s; try again") from None
        try:
            yield
        finally:
            self._one.release()

    def check(self, wanted: Asked) -> str | BadRequest:
        """Its text, or why it cannot be followed."""
        try:
            text = text_of(wanted)
        except BadRequest as error:
            return error
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=limits())
        if not matcher.is_error():
            matcher.compute_bitmask()  # some grammars compile, and take too much work at their first token
        if matcher.is_error():
            what = f"cannot be followed: {complaint(matcher.get_error())}"
            return BadRequest(f"{wanted.field}: {what}", param=wanted.param)
        return text


def _num_chars(key: str, found: str | BadRequest) -> int:
    return len(key) + len(found if isinstance(found, str) else found.message)


def _line(error: Exception) -> str:
    return short(" ".join(str(error).split()) or type(error).__name__)[1:-1]


def _param(name: str) -> str:
    return name.partition(".")[0]


def _refuse(name: str, what: str) -> NoReturn:
    raise BadRequest(f"{name}: {what}", param=_param(name))
