"""Makes mutants of a function. Each operator breaks the function in one place; a mutant is one such place.

Left out is what no test should notice: docstrings, annotations, decorators, defaults of parameters, lines of the log,
assertions, and the text of errors. `return` is changed only where types allow the other value, because mypy notices
the rest.
"""

import ast
import difflib
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

from tests.mutants.pattern import Place

Definition = ast.FunctionDef | ast.AsyncFunctionDef
Edit = tuple[str, Place, list[ast.AST]]  # the operator, and what it puts where

OUTSIDE = (
    "annotation",
    "returns",
    "decorator_list",
    "args",
    "type_comment",
    "ctx",
    "msg",
)  # fields that are left alone
OTHER_BOUND = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITE = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
}


@dataclass(frozen=True)
class Function:
    """A function or method of a file, `Class.method`; nested functions belong to the one around them."""

    path: str
    name: str
    node: Definition

    @property
    def lines(self) -> range:
        """From the first decorator to the last line, counted from 1."""
        first = min([self.node.lineno, *(each.lineno for each in self.node.decorator_list)])
        return range(first, (self.node.end_lineno or first) + 1)


@dataclass(frozen=True)
class Generated:
    """A mutant of `function` in the file `path`: its source is `after` instead of `before`. `line` is in the file."""

    path: str
    function: str
    line: int
    operator: str
    before: str
    after: str

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.path}:{self.line} {self.function}: {self.operator}"

    @property
    def room(self) -> str:
        """The folder at the top: `scheduler`."""
        return self.path.partition("/")[0]

    @property
    def why(self) -> str:
        """A unified diff with a few lines around it."""
        return "\n".join(self._diff(3)[2:])

    @property
    def change(self) -> tuple[str, ...]:
        """The diff with one line around it and without numbers. It names the mutant also after lines have moved."""
        return tuple(line[0] + line[1:].strip() for line in self._diff(1)[2:] if not line.startswith("@@"))

    def text(self, source: str) -> str:
        """The whole file with the mutant in it. LookupError if the function is not what it was."""
        tree = ast.parse(source)
        for parent, field, index, function in _slots(tree, self.path):
            if function.name == self.function and ast.unparse(function.node) == self.before:
                getattr(parent, field)[index] = ast.parse(self.after).body[0]
                return ast.unparse(tree)
        raise LookupError(f"{self.path} has no function {self.function} of that source")

    def _diff(self, num_around: int) -> list[str]:
        lines = self.before.splitlines(), self.after.splitlines()
        return list(difflib.unified_diff(*lines, n=num_around, lineterm=""))


def functions(path: str, source: str) -> list[Function]:
    """Those of a file, of its classes, and of classes within them."""
    return [function for _, _, _, function in _slots(ast.parse(source), path)]


def mutants_of(function: Function) -> Iterator[Generated]:
    """Each place that an operator breaks."""
    for number in range(num_edits(function)):
        if (mutant := mutant_of(function, number)) is not None:
            yield mutant


def num_edits(function: Function) -> int:
    """How many places the operators break."""
    return sum(1 for _ in _edits(function.node))


def mutant_of(function: Function, number: int) -> Generated | None:
    """That of place `number`. None if the source stays the same, or is no Python any more."""
    before = ast.unparse(function.node)
    operator, place, new = list(_edits(function.node))[number]

    # The tree is changed in place and put back: a copy for each mutant would take most of the time.
    kept = copy(getattr(place.node, place.field))
    line = _line(place, function.node)
    place.put(new)
    after = ast.unparse(function.node)
    setattr(place.node, place.field, kept)

    if after == before or not _compiles(after):
        return None
    return Generated(function.path, function.name, line, operator, before, after)


def _slots(tree: ast.AST, path: str, prefix: str = "") -> Iterator[tuple[ast.AST, str, int, Function]]:
    """Each function with the list that holds it: `getattr(parent, field)[index]`."""
    for field in ("body", "orelse"):
        for index, node in enumerate(getattr(tree, field, [])):
            if isinstance(node, Definition):
                yield tree, field, index, Function(path, prefix + node.name, node)
            elif isinstance(node, ast.ClassDef):
                yield from _slots(node, path, f"{prefix}{node.name}.")
            elif isinstance(node, ast.If | ast.Try):
                yield from _slots(node, path, prefix)


def _edits(function: Definition) -> Iterator[Edit]:
    start = 0 if ast.get_docstring(function) is None else 1
    if _says_none(function.returns) and function.name != "__init__" and _changes_something(function.body[start:]):
        yield "return at once", Place(function, "body", start, len(function.body), {}), [ast.Return()]
    yield from _edits_within(function, function)


def _edits_within(node: ast.AST, owner: Definition) -> Iterator[Edit]:
    """Those of what lies in `node`, in the order of the source. `owner` is the function that a `return` leaves."""
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if field in OUTSIDE or not isinstance(child, ast.AST) or _is_out(child):
                continue
            place = Place(node, field, index, index + 1, {})
            for operator, new in [*_of_statement(child, owner), *_of_expression(child, node, field, owner)]:
                yield operator, place, new
            if index + 1 < len(children) and _may_swap(child, children[index + 1], owner):
                yield "swap neighbours", Place(node, field, index, index + 2, {}), [children[index + 1], child]
            yield from _edits_within(child, child if isinstance(child, Definition) else owner)


def _of_statement(node: ast.AST, owner: Definition) -> Iterator[tuple[str, list[ast.AST]]]:
    match node:
        case ast.Expr(ast.Call() | ast.Await(ast.Call())):
            yield "drop a call", []
        case ast.Assign() | ast.AugAssign() | ast.Delete() if _has_effect(node) and owner.name != "__init__":
            yield "drop a change", []
        case ast.If(test, body, orelse):
            if len(body) > 1 or not (isinstance(body[0], ast.Pass) or _has_effect(body[0])):  # else dropped by itself
                yield "drop a branch", [ast.If(test, [ast.Pass()], orelse)]
            if orelse:
                yield "drop a branch", [ast.If(test, body, [])]


def _of_expression(
    node: ast.AST, parent: ast.AST, field: str, owner: Definition
) -> Iterator[tuple[str, list[ast.AST]]]:
    if isinstance(node, ast.expr) and field in ("test", "ifs"):
        yield "negate a condition", [_negated(node)]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "drop a not", [node.operand]

    match node:
        case ast.Compare(left, operators, others):
            for index, each in enumerate(operators):
                if type(each) in OTHER_BOUND:
                    shifted = [*operators[:index], OTHER_BOUND[type(each)](), *operators[index + 1 :]]
                    yield "shift a bound", [ast.Compare(left, shifted, others)]
        case ast.BoolOp(operator, values):
            yield "and, or", [ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)]
        case ast.Constant(int() as number) if not isinstance(number, bool):
            yield "a number off by one", [ast.Constant(number + 1)]

    if isinstance(parent, ast.Slice) and isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
        yield "shift a bound", [ast.BinOp(node, ast.Add(), ast.Constant(1))]
    if isinstance(parent, ast.Return) and isinstance(node, ast.expr):
        yield from _of_returned(node, owner)


def _of_returned(value: ast.expr, owner: Definition) -> Iterator[tuple[str, list[ast.AST]]]:
    match owner.returns:
        case ast.Name("bool"):
            yield "return the opposite", [_negated(value)]
        case ast.BinOp(_, ast.BitOr(), right) if _says_none(right) and not _says_none(value):
            yield "return None", [ast.Constant(None)]


def _negated(test: ast.expr) -> ast.expr:
    match test:
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Compare(left, [operator], [other]):
            return ast.Compare(left, [OPPOSITE[type(operator)]()], [other])
    return ast.UnaryOp(ast.Not(), test)


def _may_swap(first: ast.AST, second: ast.AST, owner: Definition) -> bool:
    """Both change something, one is a call, and one changes what the other one names: else their order says nothing."""
    if not (_has_effect(first) and _has_effect(second)) or owner.name == "__init__" or _is_out(second):
        return False
    if not (isinstance(first, ast.Expr) or isinstance(second, ast.Expr)):
        return False
    changed, also_changed = _changed(first), _changed(second)
    return bool(changed & also_changed or changed & _named(second) or also_changed & _named(first))


def _changed(statement: ast.AST) -> set[str]:
    """Dotted names of what a statement assigns to, or calls a method of: `self.pool` of `self.pool.give(page)`."""
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(owner)) | ast.Await(ast.Call(ast.Attribute(owner)))):
            return {ast.unparse(owner)}
        case ast.Assign(targets) | ast.Delete(targets):
            return {ast.unparse(target) for target in targets}
        case ast.AugAssign(target):
            return {ast.unparse(target)}
    return set()


def _named(statement: ast.AST) -> set[str]:
    """All dotted names in a statement, but `self`, which is everywhere."""
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name | ast.Attribute))
    return {ast.unparse(node) for node in names} - {"self"}


def _has_effect(node: ast.AST) -> bool:
    match node:
        case ast.Expr(ast.Call() | ast.Await(ast.Call())) | ast.AugAssign() | ast.Delete():
            return not _is_out(node)
        case ast.Assign(targets):
            return all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
    return False


def _changes_something(body: list[ast.stmt]) -> bool:
    return any(_has_effect(node) for statement in body for node in ast.walk(statement))


def _is_out(node: ast.AST) -> bool:
    """What is left alone with all that lies in it."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Expr(ast.Constant()) | ast.Constant(str() | bytes()):
            return True
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("log") | ast.Attribute(_, "log" | "_log")))):
            return True
    return any(isinstance(each, ast.Constant) and each.value is ... for each in ast.iter_child_nodes(node))


def _says_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _line(place: Place, function: Definition) -> int:
    value = getattr(place.node, place.field)
    node = value[place.start] if isinstance(value, list) else value
    return int(getattr(node, "lineno", getattr(place.node, "lineno", function.lineno)))


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True
