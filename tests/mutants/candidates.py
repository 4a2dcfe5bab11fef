"""Which test files may notice a mutant of a file: those of its room under tests/, and those that import it, themselves
or by a helper of the tests."""

import ast
from collections.abc import Mapping
from pathlib import PurePosixPath

LEFT_OUT = ("tests/bench/", "tests/loadtest/", "tests/models/", "tests/mutants/")  # they are no tests of the product


class Candidates:
    """The test files among `texts`, which has the text of each Python file by its path."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        tests = [path for path in texts if path.startswith("tests/") and not path.startswith(LEFT_OUT)]
        direct = {path: _imported(texts[path]) for path in tests}
        helpers = {_module(path): names for path, names in direct.items() if "/test_" not in path}
        self._imported = {
            path: names.union(*(helpers[name] for name in names & set(helpers)))
            for path, names in direct.items()
            if "/test_" in path
        }

    def of(self, path: str) -> set[str]:
        """For the file `path` of the product."""
        room, module = f"tests/{path.partition('/')[0]}/", _module(path)
        return {test for test, names in self._imported.items() if test.startswith(room) or module in names}

    def mirror(self, path: str) -> list[str]:
        """Test files that have the name of the file `path`. They should notice first."""
        file = PurePosixPath(path)
        stem = f"tests/{file.parent}/test_{'command' if file.stem == '__main__' else file.stem}"
        return [test for test in self._imported if test == f"{stem}.py" or test.startswith(f"{stem}_")]


def _imported(text: str) -> set[str]:
    """Modules that the text imports. `from a import b` may be the module a.b, too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
