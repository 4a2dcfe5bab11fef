"""The lists of files: a row for each source, made from its first sentence and from nothing else."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pages import Wrong, file_rows, first_sentence, main, outdated

LIST = "<!-- list of files: {} -->\n{}<!-- end of list -->\n"
CONTRACTS = """
[[tool.importlinter.contracts]]
id = "no-torch"
layers = ["wrong"]

[[tool.importlinter.contracts]]
id = "floors"
layers = ["high", "left | right : middle", "low"]
"""
ROOMS = ["high", "left", "right", "middle", "low"]


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A tree with a few rooms, whose lists are empty."""
    (tmp_path / "pyproject.toml").write_text(CONTRACTS)
    for room in ROOMS:
        write(tmp_path / room / "__init__.py", f'"""What {room} does."""\n')
        write(tmp_path / room / "README.md", f"# {room}\n\n{LIST.format('**/*', '')}\nBelow by hand.\n")
    write(tmp_path / "tests/README.md", LIST.format("*.py", "| old |\n") + "\n" + LIST.format("doubles/*.py", ""))
    write(tmp_path / "docs/structure.md", "Above.\n\n<!-- list of rooms -->\n<!-- end of list -->\nBelow.\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def names(rows: list[tuple[str, ...]]) -> list[str]:
    """The first cells below the head of a table."""
    return [row[0].strip("`") for row in rows[2:]]


# ---- what a file says of itself ----


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.py", '"""Reads config.json of a folder. Pure."""\n', "Reads config.json of a folder"),
        ("a.py", '"""One.\n\nTwo.\n"""\n', "One"),
        ("a.py", '# Not this.\n"""Takes `a|b`."""\n', r"Takes `a\|b`"),
        ("a.py", "'''Whole: a, b; c.'''\nraise SystemExit\n", "Whole: a, b; c"),
        ("a.c", "// Adds rows. Nothing else.\n// More.\nint a;\n", "Adds rows"),
        ("a.h", "// What others call.\n", "What others call"),
    ],
)
def test_the_first_sentence(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text)
    assert first_sentence(tmp_path / name) == sentence


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", ""),
        ("a.py", "a = 1  # No docstring.\n"),
        ("a.py", '"""No end"""\n'),
        ("a.py", '"""A sentence that goes on\non the next line."""\n'),
        ("a.c", "int a; // Too late.\n"),
        ("a.c", "// A sentence that goes on\n// on the next line.\n"),
    ],
)
def test_a_file_without_a_sentence_is_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(Wrong, match=f"{tmp_path / name}: expected a whole sentence on the first line"):
        first_sentence(tmp_path / name)


# ---- rows ----

paths = st.builds(
    lambda folders, stem, suffix: "/".join([*folders, stem]) + suffix,
    st.lists(st.sampled_from("a b z".split()), max_size=2),
    st.sampled_from("a b test_a __init__ __main__ z".split()),
    st.sampled_from([".py", ".c", ".h", ".cu", ".md", ".json", ".pyc"]),
)


@given(st.sets(paths), st.integers())
def test_each_source_has_one_row_in_one_order(
    tmp_path_factory: pytest.TempPathFactory, made: set[str], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("room")
    in_any_order = sorted(made)
    random.Random(seed).shuffle(in_any_order)
    for name in in_any_order:
        write(folder / name, f'"""Of {name}."""\n' if name.endswith(".py") else f"// Of {name}.\n")
    rows = file_rows(folder, "**/*")

    sources = {name for name in made if name.endswith((".py", ".c", ".h", ".cu")) and "test_a" not in name}
    shown = [name + "__init__.py" if name.endswith("/") else name for name in names(rows)]
    assert shown == sorted(sources - {"__init__.py"}, key=lambda name: (name.split("/")[:-1], name))
    assert [row[1] for row in rows[2:]] == [f"Of {name}" for name in shown]


def test_a_pattern_leaves_other_folders_out(house: Path) -> None:
    write(house / "tests/helper.py", '"""A helper."""\n')
    write(house / "tests/doubles/clock.py", '"""A clock."""\n')
    assert names(file_rows(house / "tests", "*.py")) == ["helper.py"]
    assert names(file_rows(house / "tests", "doubles/*.py")) == ["doubles/clock.py"]


# ---- pages ----


def test_lists_are_written_and_all_else_stays(house: Path) -> None:
    write(house / "left/deep/worker.py", '"""Works."""\nraise SystemExit("imported")\n')
    write(house / "left/deep/__init__.py", '"""Where it works."""\n')
    main(house, [])
    assert (house / "left/README.md").read_text() == (
        "# left\n\n<!-- list of files: **/* -->\n| file | what |\n| --- | --- |\n| `deep/` | Where it works |\n"
        "| `deep/worker.py` | Works |\n<!-- end of list -->\n\nBelow by hand.\n"
    )
    rooms = (house / "docs/structure.md").read_text()
    assert rooms.startswith(
        "Above.\n\n<!-- list of rooms -->\n| floor | room | what it is for |\n| --- | --- | --- |\n"
    )
    assert "| 2 | `high/` | What high does |\n| 1 | `left/` | What left does |\n| 1 | `right/`" in rooms
    assert rooms.endswith("| 0 | `low/` | What low does |\n<!-- end of list -->\nBelow.\n")
    assert "old" not in (house / "tests/README.md").read_text()
    assert outdated(house) == {}


@pytest.mark.parametrize(
    ("path", "text", "page"),
    [
        ("left/new.py", '"""New."""\n', "left/README.md"),
        ("left/kernels.c", "// New.\n", "left/README.md"),
        ("left/old.py", None, "left/README.md"),
        ("left/same.py", '"""Says something else."""\n', "left/README.md"),
        ("left/__init__.py", '"""Does something else."""\n', "docs/structure.md"),
        ("tests/doubles/clock.py", '"""A clock."""\n', "tests/README.md"),
    ],
)
def test_the_lint_names_the_page_and_the_command(house: Path, path: str, text: str | None, page: str) -> None:
    for name in ("old", "same"):
        write(house / f"left/{name}.py", f'"""The {name} one."""\n')
    main(house, [])
    main(house, ["--check"])
    before = (house / page).read_text()

    if text is None:
        (house / path).unlink()
    else:
        write(house / path, text)
    with pytest.raises(SystemExit) as ended:
        main(house, ["--check"])
    assert ended.value.code == f"Lists that are not as the files are: {page}. Run: make format"
    assert (house / page).read_text() == before


@pytest.mark.parametrize("arguments", [[], ["--check"]])
def test_a_page_that_has_lost_its_list_is_refused_by_name(house: Path, arguments: list[str]) -> None:
    (house / "right/README.md").write_text("# right\n\n<!-- list of files: **/* -->\n")
    with pytest.raises(SystemExit, match=r"right/README\.md: has no list"):
        main(house, arguments)
