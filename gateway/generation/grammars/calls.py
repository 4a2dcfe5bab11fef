"""The grammar of an answer that thinks and calls tools, in Lark's spelling. Pure.

start: <think> think </think> body      body: text (calls text)*, or calls alone if the answer must call
A call is written as the model's chat template writes it, so that the next prompt finds its pages cached.
Names of tools are a tree, because each of some hundred rules side by side would be an item of the parser.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from gateway.generation.grammars.raw_values import (
    TagLayout,
    banned_texts,
    json_value,
    literal,
    objects_only,
    parameters,
)
from gateway.generation.grammars.refused import GrammarRefused
from gateway.generation.grammars.schemas import strict_schema
from gateway.words.places import TOOLS

SHARED: Final = frozenset({"<tool_calls>", "<minimax:tool_call>"})  # markers between which all calls of a turn stand
_ANY: Final = "/(?s:.*)/"
_LINES: Final = "/\\n{1,3}/"  # before the first call: some templates write them there, some behind thoughts as well


def lark_of_calls(source: Mapping[str, Any]) -> str:
    """The grammar. GrammarRefused names the tool whose schema cannot be followed."""
    mark = _marks(source["tokens"])
    rules: list[str] = []
    body = _body(source, mark, rules)
    thoughts = _thoughts(source["reasoning"], mark, rules, is_forced=source["is_forced"])
    return "\n".join([f"start: {thoughts} body", f"body: {body}", f"TEXT: {_ANY}", *rules])


def for_each_tool(source: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same for answers that must call one of the tools at once: a source for each, the longest schema first."""
    tools = sorted(source["tools"], key=lambda tool: -len(json.dumps(tool["schema"])))
    return [{**source, "reasoning": None, "tools": [tool], "is_forced": True, "is_single": True} for tool in tools]


def _marks(tokens: Sequence[str]) -> Callable[[str], str]:
    """A marker as Lark spells it: a token by its name, letters in quotes."""
    return lambda marker: marker if marker in tokens else literal(marker)


# ---- thoughts ----


def _thoughts(
    reasoning: Mapping[str, Any] | None, mark: Callable[[str], str], rules: list[str], *, is_forced: bool
) -> str:
    """The text of the grammar before the body. Adds the rule `think`, which ends with its marker."""
    if reasoning is None:
        return ""
    opening, closing = mark(reasoning["opening"]), mark(reasoning["closing"])
    has_tokens = not opening.startswith('"')
    if not (reasoning["is_open"] or has_tokens or is_forced):
        return ""  # text may be such thoughts

    if closing.startswith('"'):
        rules += ["think: inner", f"inner[suffix={closing}]: {_ANY}"]
    elif reasoning["budget"] == 0:
        rules.append(f"think: {closing}")
    else:
        limit = "" if reasoning["budget"] is None else f"[max_tokens={reasoning['budget']}]"
        rules += [f"think: inner {closing}", f"inner{limit}: {_ANY}"]
    if not reasoning["is_open"]:
        return f"({opening} think)?"
    may_open = f"({opening})?" if reasoning["is_assumed"] and has_tokens else ""
    return f"{may_open} think"


# ---- calls ----


def _body(source: Mapping[str, Any], mark: Callable[[str], str], rules: list[str]) -> str:
    """What stands behind the thoughts. Adds the rules of the calls."""
    form = source["calls"]
    if form is None:
        return "TEXT"
    before, between, behind = _layout(form, source["tools"], rules)
    opening, closing = mark(form["opening"]), mark(form["closing"])
    is_shared, is_single = form["opening"] in SHARED, source["is_single"]
    more = f"({literal(between)} call)*" if is_shared and not is_single else ""
    rest = f"{before} call {more} {behind} {closing}"

    if source["is_forced"]:
        others = "" if is_shared or is_single else f'("\\n" {opening} {rest})*'
        return f"({_LINES})? {opening} {rest} {others}"
    rules.append(f"rest: {rest}")
    if not opening.startswith('"'):
        return f"TEXT ({opening} rest)?" if is_single else f"TEXT ({opening} rest TEXT)*"
    rules.append(f"lead[suffix={opening}]: {_ANY}")
    return "lead rest | TEXT" if is_single else "(lead rest)* TEXT"


def _layout(form: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], rules: list[str]) -> tuple[str, str, str]:
    """What stands behind the opening marker, between calls that share markers, and before the closing marker. Adds the
    rule `call`."""
    headers: dict[str, str] = {}  # of each tool: the text up to its arguments, and the rule of these
    known: dict[str, str] = {}  # rules by the arguments that they allow
    terminals: dict[str, str] = {}  # names of the texts that values are
    tags = TagLayout.of(form)
    for tool in tools:
        index, name, schema = tool["index"], tool["name"], tool["schema"] or {}
        try:
            if tags is None:
                header = f'{{"name": "{name}", "arguments": '
                arguments = f'{_arguments(schema if tool["is_strict"] else {})} "}}"'
            else:
                header = f"{tags.name_opening}{name}{tags.name_closing}\n"
                arguments = parameters(schema, tags, terminals, is_strict=tool["is_strict"])
        except Exception as error:
            raise GrammarRefused(f"cannot be followed: {_line(error)}", (*TOOLS, index, "schema")) from error
        headers[header] = known.setdefault(arguments, f"arguments{index}")
    rules += [f"{rule}: {body}" for body, rule in (*known.items(), *terminals.items())]
    rules += [] if tags is None else banned_texts(tags)
    _tree(headers, "call", rules)
    return ("", "", "") if form["style"] == "pairs" else ('"\\n"', "\n", '"\\n"')


def _arguments(schema: Any) -> str:
    """An object that follows a schema."""
    return json_value(objects_only(strict_schema(objects_only(schema))))


def _tree(headers: Mapping[str, str], rule: str, rules: list[str]) -> None:
    """Adds a rule for texts and what follows each, and one for each part that several texts begin with. No text begins
    another one."""
    ways: list[str] = []
    for number, (_, group) in enumerate(groupby(sorted(headers), key=lambda text: text[0])):
        texts = list(group)
        if len(texts) == 1:
            ways.append(f"{literal(texts[0])} {headers[texts[0]]}")
            continue
        shared = _beginning(texts[0], texts[-1])
        inner = f"{rule}_{number}"
        ways.append(f"{literal(shared)} {inner}")
        _tree({text[len(shared) :]: headers[text] for text in texts}, inner, rules)
    rules.append(f"{rule}: {' | '.join(ways)}")


def _beginning(one: str, other: str) -> str:
    """What both texts begin with."""
    size = next(size for size, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)
    return one[:size]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
