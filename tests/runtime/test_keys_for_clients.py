from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from runtime.keys import read_api_keys


def written(tmp_path: Path, content: bytes, mode: int = 0o600) -> Path:
    path = tmp_path / "api-keys"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_one_key_a_line_with_comments_and_blank_lines(tmp_path: Path) -> None:
    path = written(tmp_path, b"# ours\n\nsk-1\r\n  sk-2  \n   # theirs\nsk-1\nsk-3#x")
    assert read_api_keys(path) == ("sk-1", "sk-2", "sk-3#x")
    assert read_api_keys(written(tmp_path, b"sk-1", 0o640)) == ("sk-1",)


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (b"", 0o600, "it holds no key; expected one a line"),
        (b"# only a comment\n\n", 0o600, "it holds no key"),
        (b"a\nb c\n", 0o600, "line 2: expected one key of 1 to 512 printable characters, without spaces"),
        (b"a\n" + b"k" * 513, 0o600, "line 2: expected one key"),
        (b"a\x00b", 0o600, "line 1: expected one key"),
        ("sk-\u00e9".encode(), 0o600, "not ASCII at byte 3"),
        (b"k\n" * 600_000, 0o600, "it has 1200000 bytes, expected at most 1048576"),
        (b"sk-1", 0o604, "others may read or change it (mode 604); say `chmod 600`"),
        (b"sk-1", 0o644, "others may read"),
        (b"sk-1", 0o620, "others may read or change it (mode 620)"),
    ],
)
def test_a_wrong_file_is_refused_and_no_key_is_quoted(tmp_path: Path, content: bytes, mode: int, says: str) -> None:
    path = written(tmp_path, content, mode)
    with pytest.raises(ConfigError) as caught:
        read_api_keys(path)
    message = caught.value.message
    assert message.startswith("--api-key-file ") and says in message and "sk-" not in message.replace(str(path), "")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (lambda folder: folder / "none", "No such file or directory"),
        (lambda folder: folder, "it is not a file"),
    ],
)
def test_what_is_no_file(tmp_path: Path, place: Callable[[Path], Path], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_api_keys(place(tmp_path))
