"""Patterns of the syntax tree: what they fit, and what stands there afterwards."""

import ast

import pytest

from tests.mutants.pattern import definitions, find, parse

SOURCE = '''
class Pool:
    """Pages."""

    size: int = 3

    def take(self, count: int, *, owner: str = "") -> list[int]:
        # the youngest first
        taken: list[int] = self.free[-count:]
        if not (
            taken
        ):
            raise ValueError("empty")
        self.log("taken", owner=owner, count=count)
        return taken

    def give(self, pages):
        def one(page):
            self.free.append(page)

        for page in pages:
            one(page)
        self.count(len(pages))
        self.count(0)


if True:
    async def close(pool):
        pool.free = pool.free + pool.used
'''


def mutated(function: str, old: str, new: str) -> str:
    """What is left of `function` after `old` became `new`, which must fit once."""
    tree = ast.parse(SOURCE)
    (scope,) = definitions(tree, function)
    before, after = parse(old, new)
    (place,) = find(scope, before)
    place.put(after)
    return ast.unparse(scope)


def num_fits(function: str, old: str) -> int:
    scopes = definitions(ast.parse(SOURCE), function)
    return sum(len([*find(scope, parse(old, "")[0])]) for scope in scopes)


@pytest.mark.parametrize(
    "function, old, num",
    [
        ("Pool.take", "taken = self.free[-count:]", 1),  # an annotation does not count
        ("Pool.take", "if not taken: raise ValueError('empty')", 1),  # nor do lines, brackets and quotes
        ("Pool.take", "self.log('taken', count=count, owner=owner)", 1),  # nor does the order of keywords
        ("Pool.take", "self.log('taken', count=count)", 0),
        ("Pool.take", "self.log(..., count=count)", 1),
        ("Pool.take", "self.log(..., count=1)", 0),
        ("Pool.take", "self.log('taken', owner, count=count)", 0),
        ("Pool.take", "if not taken: ...", 1),
        ("Pool.take", "if not taken: ...\nreturn taken", 0),  # they do not follow one another
        ("Pool.take", "if not taken: ...\n__call", 1),  # a call by itself is a statement
        ("Pool.give", "self.count(__number)", 2),
        ("Pool.give", "self.count(...)\nself.count(...)", 1),
        ("Pool.give", "self.free.append(page)", 1),  # in the function within
        ("Pool.give.one", "self.free.append(page)", 1),
        ("Pool.give", "self.count(False)", 0),  # 0 == False
        ("close", "__pool.free = __pool.free + __pool.used", 1),
        ("close", "__pool.free + __pool.free", 0),  # one name, one thing
        ("Pool", "size = 3", 1),
        ("take", "return taken", 0),  # no function of that name at the top
        ("Pool.absent", "return taken", 0),
    ],
)
def test_a_pattern_fits_the_tree_and_not_the_text(function: str, old: str, num: int) -> None:
    assert num_fits(function, old) == num


@pytest.mark.parametrize(
    "function, old, new, expected",
    [
        ("Pool.take", "self.free[__range]", "self.used[__range]", "taken: list[int] = self.used[-count:]"),
        ("Pool.take", "self.log(..., owner=owner)", "self.log(...)", "self.log('taken', count=count)"),
        ("Pool.take", "self.log('taken', ...)", "self.log(...)", "self.log(owner=owner, count=count)"),
        ("Pool.take", "if not taken: ...", "if taken: ...", "if taken:\n        raise ValueError('empty')"),
        ("Pool.give.one", "self.free.append(page)", "", "def one(page):\n    pass"),
        ("Pool.give", "for page in pages: ...", "", "self.free.append(page)\n    self.count(len(pages))"),
        ("Pool.give", "len(pages)", "len(pages) - 1", "self.count(len(pages) - 1)"),
        ("close", "pool.free + __other", "__other", "pool.free = pool.used"),
        ("close", "pool.free = __all", "__all\npool.close()", "    pool.free + pool.used\n    pool.close()"),
    ],
)
def test_what_fits_is_replaced(function: str, old: str, new: str, expected: str) -> None:
    assert expected in mutated(function, old, new)


def test_a_name_that_stands_for_nothing_is_refused() -> None:
    with pytest.raises(KeyError, match="__other"):
        mutated("close", "pool.free = __all", "pool.free = __other")
