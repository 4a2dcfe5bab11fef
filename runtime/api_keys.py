"""Reads the file of `--api-key-file`: one key a line. Blank lines and lines that begin with # are skipped.

ConfigError for a file that is missing, has no key, or that other users of this machine may read or change.
"""

import re
import stat
from pathlib import Path

from protocol.brief import brief
from protocol.errors import ConfigError

MAX_BYTES = 1 << 20
_KEY = re.compile(r"[\x21-\x7e]{1,512}\Z")
_BY_OTHERS = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP


def read_api_keys(path: str | Path) -> tuple[str, ...]:
    """The keys in the file, in its order. Error messages never quote a key."""
    place = Path(path)
    keys = []
    for number, line in enumerate(_text(place).splitlines(), 1):
        key = line.strip()
        if key and not key.startswith("#"):
            if not _KEY.match(key):
                raise _wrong(place, f"line {number}: expected one key of 1 to 512 printable characters, without spaces")
            keys.append(key)
    if not keys:
        raise _wrong(place, "it holds no key; expected one a line")
    return tuple(dict.fromkeys(keys))


def _text(place: Path) -> str:
    try:
        found = place.stat()
        is_file, mode, num_bytes = stat.S_ISREG(found.st_mode), stat.S_IMODE(found.st_mode), found.st_size
        raw = place.read_bytes() if is_file and num_bytes <= MAX_BYTES else b""
    except OSError as error:
        raise _wrong(place, error.strerror or "it cannot be read") from error

    if not is_file:
        raise _wrong(place, "it is no file")
    if mode & _BY_OTHERS:
        raise _wrong(place, f"others may read or change it (mode {mode:o}); say `chmod 600`")
    if num_bytes > MAX_BYTES:
        raise _wrong(place, f"it has {num_bytes} bytes, expected at most {MAX_BYTES}")

    try:
        return raw.decode("ascii")
    except UnicodeDecodeError as error:
        raise _wrong(place, f"byte {error.start} is no ASCII; keys are printable ASCII") from error


def _wrong(path: Path, why: str) -> ConfigError:
    return ConfigError(f"--api-key-file {brief(str(path))}: {why}", param="api-key-file")
