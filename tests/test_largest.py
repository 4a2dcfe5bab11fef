"""The list of the largest files and classes."""

from pathlib import Path

import pytest

from tests.largest import MOST_SHOWN, classes_of, files_of, largest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with two files of the product and one that is none."""
    sources = {
        "decode/a.py": "import os\n\n\nclass Outer:\n    class Inner:\n        size = 1\n\n    size = 2\n\n\nend = 1\n",
        "gateway/deep/b.py": "@frozen\nclass Alone:\n    pass\n",
        "tests/test_c.py": "class Test:\n    pass\n" * 50,
    }
    for path, source in sources.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    return tmp_path


def test_files_and_classes_of_the_product_are_measured(root: Path) -> None:
    assert largest(files_of(root)) == [("decode/a.py", 11), ("gateway/deep/b.py", 3)]
    assert largest(classes_of(root)) == [
        ("decode/a.py::Outer", 5),
        ("decode/a.py::Inner", 2),
        ("gateway/deep/b.py::Alone", 2),
    ]


def test_ten_are_shown_and_equal_ones_by_name() -> None:
    lengths = [(f"{number:02}", number // 2) for number in range(30)]
    shown = largest(iter(lengths))
    assert len(shown) == MOST_SHOWN == 10
    assert shown[:4] == [("28", 14), ("29", 14), ("26", 13), ("27", 13)]
