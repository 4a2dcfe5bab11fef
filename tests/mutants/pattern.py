"""Finds a piece of Python by its syntax tree and puts another in its place.

A pattern is written in Python. A name that begins with two underscores, `__x`, fits any expression; if it comes twice,
the same one. `...` fits any run of statements or elements; among the arguments of a call it fits all that the pattern
does not name. The replacement puts back what `__x` and `...` fitted. Formatting, comments, annotations of variables and
the order of keyword arguments do not count.
"""

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

REST = "..."  # the key of what `...` fitted
UNSEEN = ("ctx", "annotation", "returns", "type_comment", "kind")  # fields that do not count

Held = dict[str, Any]  # the expression that a name fitted, by the name; a list by REST


@dataclass(frozen=True)
class Place:
    """A pattern fits `node.field`, or its elements `[start, end)` if it is a list; `held` is what its names fitted."""

    node: ast.AST
    field: str
    start: int
    end: int
    held: Held

    def put(self, new: list[ast.AST]) -> None:
        """Puts `new` there; `pass` where no statement would be left in a body."""
        filled = [node for part in new for node in _as_list(_Filler(self.held).visit(deepcopy(part)))]
        value = getattr(self.node, self.field)
        if not isinstance(value, list):
            setattr(self.node, self.field, filled[0])
            return
        value[self.start : self.end] = filled
        if self.field == "body" and not value:
            value.append(ast.Pass())


def parse(old: str, new: str) -> tuple[list[ast.AST], list[ast.AST]]:
    """Each as a list of statements; if both are expressions, each as a list of one expression."""
    pair = ast.parse(old).body, ast.parse(new).body
    match pair:
        case ([ast.Expr(before)], [ast.Expr(after)]):
            return [before], [after]
    return [*pair[0]], [*pair[1]]


def definitions(tree: ast.AST, name: str) -> list[ast.AST]:
    """The functions and classes of that dotted name in `tree`: `Class.method`, `function.inner`."""
    found = [tree]
    for part in name.split("."):
        found = [node for scope in found for node in _defined_in(scope) if node.name == part]
    return found


def find(scope: ast.AST, pattern: list[ast.AST]) -> Iterator[Place]:
    """Wherever `pattern` fits in `scope`, nested functions included."""
    size = len(pattern)
    for node in ast.walk(scope):
        for field, value in ast.iter_fields(node):
            nodes = _as_list(value)
            for start in range(len(nodes) - size + 1):
                held: Held = {}
                if _all_fit(pattern, nodes[start : start + size], held):
                    yield Place(node, field, start, start + size, held)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _defined_in(scope: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
        elif isinstance(node, ast.stmt):  # under an `if`, say
            yield from _defined_in(node)


def _fits(pattern: Any, node: Any, held: Held) -> bool:
    pattern, node = _without_annotation(pattern), _without_annotation(node)
    match pattern:
        case ast.Name(id=name) if _is_wild(name):
            return isinstance(node, ast.expr) and ast.unparse(held.setdefault(name, node)) == ast.unparse(node)
        case list():
            return isinstance(node, list) and _all_fit(pattern, node, held)
        case ast.Call():
            return isinstance(node, ast.Call) and _call_fits(pattern, node, held)
        case ast.AST():
            fields = [field for field in pattern._fields if field not in UNSEEN]
            return type(pattern) is type(node) and all(
                _fits(getattr(pattern, field), getattr(node, field), held) for field in fields
            )
    return type(pattern) is type(node) and pattern == node


def _all_fit(patterns: list[Any], nodes: list[Any], held: Held) -> bool:
    rest = next((index for index, pattern in enumerate(patterns) if _is_rest(pattern)), None)
    if rest is not None and len(nodes) >= len(patterns) - 1:
        end = len(nodes) - (len(patterns) - rest - 1)
        held[REST] = nodes[rest:end]
        patterns, nodes = patterns[:rest] + patterns[rest + 1 :], nodes[:rest] + nodes[end:]
    return len(patterns) == len(nodes) and all(_fits(*pair, held) for pair in zip(patterns, nodes, strict=True))


def _call_fits(pattern: ast.Call, node: ast.Call, held: Held) -> bool:
    names = [keyword.arg for keyword in pattern.keywords]
    given = {keyword.arg: keyword for keyword in node.keywords}
    if not all(name in given for name in names):
        return False
    named = [given.pop(name) for name in names]
    if not (_fits(pattern.func, node.func, held) and _all_fit(pattern.args, node.args, held)):
        return False
    if any(_is_rest(arg) for arg in pattern.args):
        held[REST] = [*held[REST], *given.values()]
        given = {}
    return not given and _all_fit(pattern.keywords, named, held)


def _is_wild(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


def _is_rest(node: Any) -> bool:
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.Constant) and value.value is ...


def _without_annotation(node: Any) -> Any:
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return ast.Assign([node.target], node.value)
    return node


class _Filler(ast.NodeTransformer):
    """Fills a replacement with what the pattern fitted."""

    def __init__(self, held: Held) -> None:
        self._held = held

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return deepcopy(self._held[node.id]) if _is_wild(node.id) else node

    def visit_Constant(self, node: ast.Constant) -> Any:
        return deepcopy(self._held[REST]) if _is_rest(node) else node

    def visit_Expr(self, node: ast.Expr) -> Any:
        return deepcopy(self._held[REST]) if _is_rest(node) else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords += [arg for arg in node.args if isinstance(arg, ast.keyword)]
        node.args = [arg for arg in node.args if not isinstance(arg, ast.keyword)]
        return node
