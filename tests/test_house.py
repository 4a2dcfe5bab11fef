"""The rules of the house that no linter checks: files named in the docs exist, rooms stay light, tests assert."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from deploy.options import OPTIONS
from runtime.installation import ROOMS, foreign_owners
from scheduler.plan import Plan

ROOT = Path(__file__).resolve().parents[1]
CODE = [*ROOMS, "bench", "models", "testkit", "tests"]
ACROSS = {  # tests of what several modules do together, and of pages of the docs
    "tests/deploy/test_log_page.py",
    "tests/gateway/golden/test_answers.py",
    "tests/gateway/test_clients_page.py",
    "tests/model/test_idle_forward.py",
    "tests/transfer/backends/test_shm.py",
}
MOST_WORDS = 100  # of the glossary
BLOCK_OF_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PAGES_OF_OPTIONS = ("docs/options.md", "docs/http.md")
ANYWHERE = ("work", "root", "home", "Users")  # first folders of a path that exists on one machine only
FORBIDDEN_MODULES = {"pickle", "marshal", "dill", "cloudpickle", "shelve"}
FORBIDDEN_CALLS = {"recv_pyobj", "send_pyobj", "eval", "exec"}


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def text_files() -> list[Path]:
    suffixes = {".py", ".md", ".toml", ".txt", ".cfg", ".json", ".jinja", ".sh", ".yaml"}
    inside = [path for folder in [*CODE, "docs", ".ci"] for path in (ROOT / folder).rglob("*") if path.is_file()]
    top = [path for path in ROOT.iterdir() if path.is_file()]
    return [path for path in inside + top if path.suffix in suffixes or path.name in {"Makefile", "run", "LICENSE"}]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ---- the docs tell the truth ----


def files_named_in(text: str) -> set[str]:
    """Paths with a slash and an extension, in backticks: `decode/loop.py`."""
    return set(re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.\w+)`", text))


@pytest.mark.parametrize(
    "doc",
    [
        "docs/structure.md",
        "docs/ownership.md",
        "README.md",
        "CONTRIBUTING.md",
        "docs/glossary.md",
        "docs/exploring.md",
        "docs/security.md",
        "docs/models.md",
        "docs/options.md",
        "tests/README.md",
    ],
)
def test_every_file_named_in_the_docs_exists(doc: str) -> None:
    named = files_named_in((ROOT / doc).read_text())
    folders = (ROOT, (ROOT / doc).parent)
    assert {path for path in named if not any((folder / path).exists() for folder in folders)} == set()
    assert named or doc != "docs/structure.md"


@pytest.mark.parametrize("doc", ["docs/glossary.md", "docs/ownership.md"])
def test_every_type_with_a_file_is_in_that_file(doc: str) -> None:
    rows = re.findall(r"((?:`\w+`(?:, )?)+) \(`([\w/]+\.py)`\)", (ROOT / doc).read_text())
    told = {(name, path) for names, path in rows for name in re.findall(r"\w+", names)}
    assert len(told) >= 5
    assert [(name, path) for name, path in told if f"\nclass {name}" not in (ROOT / path).read_text()] == []


def entries_of_the_glossary() -> list[tuple[str, str]]:
    """Each row of the page's tables: its word or words, and the meaning."""
    lines = (ROOT / "docs/glossary.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ", 1) for line in lines if line.startswith("| ")]
    return [(word, meaning) for word, meaning in rows if word != "word"]


def test_the_glossary_has_at_most_a_hundred_words_and_each_once() -> None:
    words = [word for word, _ in entries_of_the_glossary()]
    assert [word for word in words if not re.fullmatch(r"\*\*[^*]+\*\*", word)] == []
    assert 50 <= len(words) <= MOST_WORDS
    assert len({word.lower() for word in words}) == len(words)


def test_an_entry_of_the_glossary_has_one_meaning() -> None:
    """It names one thing that the word is said of, defines no other word, and speaks of no other use."""
    for word, meaning in entries_of_the_glossary():
        scopes = re.findall(r"(?:^|[.;] )(?:of|for|in|at) [^:.]{1,40}: ", meaning, re.IGNORECASE)
        others = re.findall(r"; also|\. Also|\balso (?:the|a|of)\b|other pages|nothing to do with", meaning)
        assert (len(scopes) <= 1, others, "**" in meaning) == (True, [], False), word


@pytest.mark.parametrize(
    "doc", ["README.md", "CONTRIBUTING.md", "tests/README.md", "docs/measurements.md", "docs/exploring.md"]
)
def test_every_make_command_in_the_docs_exists(doc: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (ROOT / doc).read_text()
    named = set(re.findall(r"(?:`|^\$ )make ([a-z-]+)", text, re.MULTILINE))
    assert named and named <= targets


@pytest.mark.parametrize("doc", ["README.md", "docs/options.md", "docs/http.md", "docs/models.md"])
def test_every_flag_in_the_docs_exists(doc: str) -> None:
    known = {"help", "json"} | {spelling for option in OPTIONS for spelling in (option.name, *option.aliases)}
    named = set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", (ROOT / doc).read_text()))
    assert named and named <= known


def test_every_option_has_a_row() -> None:
    rows = "".join(
        re.findall(r"^\| `--.*", "\n".join((ROOT / doc).read_text() for doc in PAGES_OF_OPTIONS), re.MULTILINE)
    )
    told = set(re.findall(r"--([a-z-]+)", rows))
    assert {option.name for option in OPTIONS} - told == set()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160


def test_lines_of_the_docs_wrap() -> None:
    """Save tables, and commands to copy."""
    long = []
    for path in [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("*/README.md")]:
        prose = BLOCK_OF_CODE.sub(lambda code: "\n" * code[0].count("\n"), path.read_text())
        lines = enumerate(prose.splitlines(), 1)
        long += [f"{name(path)}:{number}" for number, line in lines if len(line) > 160 and line[:1] != "|"]
    assert long == []


def test_ownership_has_every_field_of_a_plan() -> None:
    told = re.findall(r"`Plan\(([^)]*)\)`", (ROOT / "docs/ownership.md").read_text())
    assert told == [", ".join(field.name for field in fields(Plan))]


# ---- rooms are light, and are ours ----


@pytest.mark.parametrize("room", ["protocol", "runtime", "gateway"])
def test_a_light_room_never_imports_torch(room: str) -> None:
    """A process of its own imports every module of the room (save `__main__`, which would start it)."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in python_files(room)
        if path.name not in {"__init__.py", "__main__.py"}
    ]
    script = (
        "import importlib, sys\n"
        f"for module in {modules!r}: importlib.import_module(module)\n"
        "print(sorted({'torch', 'triton', 'transformers', 'tensorflow', 'jax'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_no_other_distribution_owns_one_of_our_names() -> None:
    assert foreign_owners(packages_distributions()) == {}


def test_a_wheel_has_the_files_that_are_not_python() -> None:
    """Those that setuptools would copy beside the modules."""
    script = (
        "from setuptools import Distribution; found = Distribution(); found.parse_config_files()\n"
        "build = found.get_command_obj('build_py'); build.ensure_finalized()\n"
        "print(*(f'{room}/{name}' for room, _, _, names in build.data_files for name in names))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    kept = {
        name(path)
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.suffix in {".c", ".h", ".json", ".yml"}
    }
    assert "deploy/observability/grafana.json" in kept
    assert (done.returncode, set(done.stdout.split())) == (0, kept), done.stderr


# ---- files ----


def test_every_room_is_listed_and_its_init_does_no_work() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(CODE)
    for room in ROOMS:
        body = ast.parse((ROOT / room / "__init__.py").read_text()).body
        assert len(body) <= 1 and ast.get_docstring(ast.Module(body, [])), f"{room}/__init__.py does work"


def test_no_path_of_one_machine() -> None:
    pattern = re.compile(rf"(?<![\w.:/}}-])/(?:{'|'.join(ANYWHERE)})/\w")
    found = [
        f"{name(path)}:{number}"
        for path in text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def calls(node: ast.AST) -> Iterator[str]:
    """The last names of everything called in `node`: `pytest.raises(...)` gives raises."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call):
            if isinstance(inner.func, ast.Name):
                yield inner.func.id
            elif isinstance(inner.func, ast.Attribute):
                yield inner.func.attr


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def bare_calls(tree: ast.AST) -> set[str]:
    """Names called as plain functions, and socket methods: `model.eval()` is not `eval()`."""
    plain = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    methods = {n.func.attr for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    return plain | (methods & {"recv_pyobj", "send_pyobj"})


@pytest.mark.parametrize("folder", CODE)
def test_nothing_runs_code_from_data_and_nothing_swallows_every_error(folder: str) -> None:
    for path in python_files(folder):
        tree = ast.parse(path.read_text())
        bare = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and n.type is None]
        found = (set(imports(tree)) & FORBIDDEN_MODULES) | (bare_calls(tree) & FORBIDDEN_CALLS)
        assert (bare, found) == ([], set()), name(path)


# Where single tokens lie: arrays of them, divided at once.
ADDRESSES = {"scheduler/execution/batches.py", "scheduler/execution/warm_up.py", "transfer/plan.py"}


def test_only_one_file_divides_by_the_size_of_a_page() -> None:
    found = set()
    for path in python_files(*(room for room in ROOMS if room != "model")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod):
                divisor = ast.unparse(node.right).rpartition(".")[2]
                if divisor in ("page_size", "page_bytes") and name(path) not in ADDRESSES:
                    found.add(name(path))
    assert found == {"protocol/kv_layout.py"}


# ---- tests ----


def is_assertion(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return True
    if isinstance(node, ast.Call):
        called = next(calls(ast.Expr(node)), "")
        return called in {"raises", "warns", "fail"} or called.startswith(("assert_", "check_", "expect_"))
    return False


def test_every_test_asserts_and_every_test_file_has_tests() -> None:
    silent = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        functions = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        ]
        silent += [
            f"{name(path)}::{function.name}"
            for function in functions
            if not any(is_assertion(node) for node in ast.walk(function))
        ]
        if not functions and "TestCase" not in path.read_text():
            silent.append(f"{name(path)} has no test")
    assert not silent, "no assertion in: " + ", ".join(silent)


def test_no_test_module_imports_from_another() -> None:
    """What two of them share is a helper, in a file of their room whose name does not begin with test_."""
    pattern = re.compile(r"^\s*(?:from|import) tests\.(?:\w+\.)*test_\w+", re.MULTILINE)
    files = [path for path in python_files("tests") if pattern.search(path.read_text())]
    assert [name(path) for path in files] == []


def modules_for(folder: Path) -> set[str]:
    """What tests in a folder of `tests/` may be named after: modules of the same folder of the product."""
    room = ROOT / folder.relative_to(ROOT / "tests")
    if room.with_suffix(".py").exists():  # a folder for one module: its tests are named after what they hold
        return {""}
    return {"command" if path.stem == "__main__" else path.stem for path in room.rglob("*.py")}


@pytest.mark.parametrize("room", [*ROOMS, "bench", "testkit"])
def test_tests_are_named_after_their_modules(room: str) -> None:
    """`gateway/routing/pairing.py` is tested by `test_pairing.py` or `test_pairing_ASPECT.py`."""
    strays = set()
    for path in (ROOT / "tests" / room).rglob("test_*.py"):
        about = path.stem.removeprefix("test_")
        modules = modules_for(path.parent)
        if not ("" in modules or any(about == module or about.startswith(f"{module}_") for module in modules)):
            strays.add(name(path))
    assert strays == {path for path in ACROSS if path.startswith(f"tests/{room}/")}
