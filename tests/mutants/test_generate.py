"""The operators of generated mutants: what each makes of a function, and what all of them leave alone."""

import ast
from pathlib import Path

import pytest

from tests.mutants.generate import Generated, functions, mutants_of

ROOT = Path(__file__).resolve().parents[2]


def mutants(source: str) -> list[Generated]:
    return [mutant for function in functions("room/file.py", source) for mutant in mutants_of(function)]


def made(body: str, head: str = "def f(a, b):") -> list[tuple[str, str]]:
    """The operator and the body of each mutant of a function."""
    source = f"{head}\n" + "\n".join(f"    {line}" for line in body.splitlines())
    return [
        (mutant.operator, "\n".join(line[4:] for line in mutant.after.splitlines()[1:])) for mutant in mutants(source)
    ]


@pytest.mark.parametrize(
    "body, expected",
    [
        ("a.x()\nb = 1.5", [("drop a call", "b = 1.5")]),
        ("await a.x()\nb = 1.5", [("drop a call", "b = 1.5")]),
        ("a.x()", [("drop a call", "pass")]),
        ("a.x = b", [("drop a change", "pass")]),
        ("a[b] = b", [("drop a change", "pass")]),
        ("a += b", [("drop a change", "pass")]),
        ("del a[b]", [("drop a change", "pass")]),
        ("a = b", []),
        ("a.x()\na.y()", [("drop a call", "a.y()"), ("swap neighbours", "a.y()\na.x()"), ("drop a call", "a.x()")]),
        ("a.x = b\na.y = b", [("drop a change", "a.y = b"), ("drop a change", "a.x = b")]),  # their order says nothing
        (
            "if a:\n    return b",
            [("drop a branch", "if a:\n    pass"), ("negate a condition", "if not a:\n    return b")],
        ),
        (
            "if a == b:\n    return a\nelse:\n    return b",
            [
                ("drop a branch", "if a == b:\n    pass\nelse:\n    return b"),
                ("drop a branch", "if a == b:\n    return a"),
                ("negate a condition", "if a != b:\n    return a\nelse:\n    return b"),
            ],
        ),
        ("while not a:\n    b = a", [("negate a condition", "while a:\n    b = a")]),
        ("return a if a in b else b", [("negate a condition", "return a if a not in b else b")]),
        ("return [x for x in a if x is b]", [("negate a condition", "return [x for x in a if x is not b]")]),
        ("return not a", [("drop a not", "return a")]),
        ("return a < b", [("shift a bound", "return a <= b")]),
        ("return a >= b", [("shift a bound", "return a > b")]),
        ("return 0.5 < a <= b", [("shift a bound", "return 0.5 <= a <= b"), ("shift a bound", "return 0.5 < a < b")]),
        ("return a[:b]", [("shift a bound", "return a[:b + 1]")]),
        ("return a and b", [("and, or", "return a or b")]),
        ("return a or b", [("and, or", "return a and b")]),
        ("return a + 1", [("a number off by one", "return a + 2")]),
        ("return a[0]", [("a number off by one", "return a[1]")]),
    ],
)
def test_each_operator(body: str, expected: list[tuple[str, str]]) -> None:
    head = "async def f(a, b):" if "await" in body else "def f(a, b):"
    assert made(body, head) == expected


@pytest.mark.parametrize(
    "head, body, expected",
    [
        ("def f(a) -> bool:", "return a", [("return the opposite", "return not a")]),
        ("def f(a) -> bool:", "return True", [("return the opposite", "return False")]),
        ("def f(a) -> int | None:", "return a", [("return None", "return None")]),
        ("def f(a) -> int | None:", "return None", []),
        ("def f(a) -> int:", "return a", []),
        ("def f(a) -> None:", "'''Text.'''\na.x()", [("return at once", '"""Text."""\nreturn')]),
        ("def f(a) -> None:", "for b in a:\n    b.x()", [("return at once", "return")]),
        ("def f(a) -> None:", "b = a", []),
        ("def __init__(a) -> None:", "a.x = a", []),  # whatever reads it fails
    ],
)
def test_what_a_function_returns_changes_where_its_type_allows_it(
    head: str, body: str, expected: list[tuple[str, str]]
) -> None:
    assert [each for each in made(body, head) if each[0].startswith("return")] == expected


@pytest.mark.parametrize(
    "body",
    [
        "'''1 < 2'''\nreturn a",
        "raise ValueError(f'{a + 1} not {b}')",
        "assert a < 3 and b",
        "log.info('1', number=1)",
        "self._log.warning('text', number=1)",
        "return f'{a + 1}'",
        "b: Literal[1] = a",
        "...",
        "return True",
    ],
)
def test_what_no_test_should_notice_is_left_alone(body: str) -> None:
    assert made(body, "@retry(times=3)\ndef f(self, a=1, b=2):") == []


@pytest.mark.parametrize(
    "first, second, is_swapped",
    [
        ("a.x()", "b.y()", False),
        ("a.x()", "b.y(a)", True),
        ("b.y(a.x)", "a.x = b", True),
        ("a.x = b", "b.y()", True),
        ("a.x += b", "a.y()", True),
        ("del a[b]", "a.y()", True),
        ("self.a.x()", "self.b.y()", False),
        ("self.a.x()", "self.b.y(self.a)", True),
        ("self.x()", "self.y()", True),
        ("self.a.x()", "self.y()", False),
        ("a.x()", "b = a.y", False),
        ("f(a)", "g(a)", False),
    ],
)
def test_neighbours_are_swapped_where_one_changes_what_the_other_names(
    first: str, second: str, is_swapped: bool
) -> None:
    swapped = [body for operator, body in made(f"{first}\n{second}") if operator == "swap neighbours"]
    assert swapped == ([f"{second}\n{first}"] if is_swapped else [])


def test_functions_of_classes_and_under_conditions_have_dotted_names_and_nested_ones_belong_to_theirs() -> None:
    source = """
class A:
    class B:
        @property
        def x(self): return self.y < 3

if True:
    def f():
        def inner(n): return not n
        return inner
"""
    found = functions("room/file.py", source)
    assert [(each.name, each.lines) for each in found] == [("A.B.x", range(4, 6)), ("f", range(8, 11))]
    assert {(each.function, each.line) for each in mutants(source)} == {("A.B.x", 5), ("f", 9)}


SOURCE = """
def f(a):
    return a  # the first

class A:
    @property
    def f(self): return self.x

    @f.setter
    def f(self, x): self.x = x + 1
"""


def test_a_mutant_changes_its_own_function_in_the_text_of_the_file_and_nothing_else() -> None:
    drop, off = mutants(SOURCE)
    assert drop.name == "room/file.py:10 A.f: drop a change" and drop.room == "room"
    assert off.text(SOURCE) == ast.unparse(ast.parse(SOURCE.replace("x + 1", "x + 2")))
    assert drop.text(SOURCE) == ast.unparse(ast.parse(SOURCE.replace("self.x = x + 1", "pass")))
    with pytest.raises(LookupError, match=r"room/file.py has no function A.f"):
        drop.text(SOURCE.replace("x + 1", "x + 3"))


def test_a_change_is_known_again_after_lines_have_moved_and_is_shown_with_what_is_around_it() -> None:
    (_, before), (_, after) = mutants(SOURCE), mutants("import os\n\n" + SOURCE)
    assert before.line + 2 == after.line and before.change == after.change
    assert before.change == (" def f(self, x):", "-self.x = x + 1", "+self.x = x + 2")
    assert before.why.startswith("@@ -1,3 +1,3 @@") and "+    self.x = x + 2" in before.why


def test_every_mutant_of_a_large_file_is_python_and_differs_from_the_source_and_the_others() -> None:
    path = "scheduler/planning/planner.py"
    source = (ROOT / path).read_text()
    texts = []
    for function in functions(path, source):
        before = ast.unparse(function.node)
        texts += [mutant.text(source) for mutant in mutants_of(function)]
        assert ast.unparse(function.node) == before  # each was undone
    assert len(texts) > 100 and ast.unparse(ast.parse(source)) not in texts
    assert len(set(texts)) > 0.98 * len(texts)
    for text in texts:
        compile(text, path, "exec")
