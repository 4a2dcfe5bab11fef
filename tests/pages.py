"""`python -m tests.pages`: writes the lists of files in READMEs and of rooms in docs/structure.md. Imports no module.

A list stands between two comments of a page and has a row for each file: its name, and the first sentence of its
docstring or of its first comment, which has to stand on the first line. With --check it writes nothing and compares.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = re.compile(
    r"(?P<begin><!-- list of (?:files: (?P<pattern>\S+)|rooms) -->\n).*?(?P<end><!-- end of list -->)", re.DOTALL
)
SENTENCE = re.compile(r"(.+?)\.(?: |$)")
COMMENT = re.compile(r"// (.*)")
SUFFIXES = {".py", ".c", ".h", ".cu"}
STRUCTURE = "docs/structure.md"


class Wrong(Exception):
    """A page or a file from which no list can be made, in one sentence."""


def outdated(root: Path) -> dict[Path, str]:
    """The pages whose lists are not as the files are, with the texts that they should have."""
    floors = rooms_by_floor(root)
    readmes = [f"{room}/README.md" for floor in floors for room in floor]
    pages = [root / page for page in (*readmes, "tests/README.md", STRUCTURE)]
    return {page: text for page in pages if (text := with_lists(page, floors)) != page.read_text()}


def rooms_by_floor(root: Path) -> list[list[str]]:
    """The rooms of each floor, from the lowest floor up, by the contract in pyproject.toml."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "floors")
    return [re.findall(r"\w+", layer) for layer in reversed(layers)]


def with_lists(page: Path, floors: list[list[str]]) -> str:
    """The text of a page with its lists as they should be."""

    def fill(found: re.Match[str]) -> str:
        rows = file_rows(page.parent, found["pattern"]) if found["pattern"] else room_rows(page.parents[1], floors)
        return found["begin"] + "".join(f"| {' | '.join(row)} |\n" for row in rows) + found["end"]

    text, number = LIST.subn(fill, page.read_text())
    if not number:
        raise Wrong(f"{page}: has no list, expected <!-- list of files: **/* --> and <!-- end of list -->")
    return text


def file_rows(folder: Path, pattern: str) -> list[tuple[str, ...]]:
    """Files of a folder that fit a pattern, those of the folder itself first. A package has a row, too: its folder."""
    found = {path.relative_to(folder) for path in folder.glob(pattern) if is_listed(path)} - {Path("__init__.py")}
    in_order = sorted(found, key=lambda path: (path.parent.parts, path.name))
    names = [f"`{path.parent}/`" if path.name == "__init__.py" else f"`{path}`" for path in in_order]
    sentences = [first_sentence(folder / path) for path in in_order]
    return [("file", "what"), ("---", "---"), *zip(names, sentences, strict=True)]


def is_listed(path: Path) -> bool:
    """Whether a list has a row for this file: all sources but tests."""
    return path.suffix in SUFFIXES and not path.name.startswith("test_")


def room_rows(root: Path, floors: list[list[str]]) -> list[tuple[str, ...]]:
    """All rooms, from the highest floor down."""
    rows = [
        (str(number), f"`{room}/`", first_sentence(root / room / "__init__.py"))
        for number, rooms in reversed(list(enumerate(floors)))
        for room in rooms
    ]
    return [("floor", "room", "what it is for"), ("---", "---", "---"), *rows]


def first_sentence(path: Path) -> str:
    """What a file says of itself, as a cell of a table."""
    text = path.read_text()
    if path.suffix == ".py":
        told = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = COMMENT.match(text)
        told = comment[1] if comment else ""

    sentence = SENTENCE.match(told.partition("\n")[0])
    if sentence is None:
        raise Wrong(f"{path}: expected a whole sentence on the first line of its docstring, or of its first comment")
    return sentence[1].replace("|", r"\|")


def main(root: Path, arguments: list[str]) -> None:
    """Ends with a sentence if a list cannot be made, or with --check if one is not as it should be."""
    try:
        texts = outdated(root)
    except Wrong as wrong:
        sys.exit(str(wrong))

    if texts and "--check" in arguments:
        pages = ", ".join(str(page.relative_to(root)) for page in texts)
        sys.exit(f"Lists that are not as the files are: {pages}. Run: make format")
    for page, text in texts.items():
        page.write_text(text)


if __name__ == "__main__":
    main(ROOT, sys.argv[1:])
