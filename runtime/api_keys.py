"""Reads the file of `--api-key-file`: one key a line. Blank lines and lines that begin with # are skipped.

ConfigError for a file that is missing, has no key, or that other users of this machine may read or change.
"""

import re
import stat
from pathlib import Path

from protocol.errors import ConfigError, brief

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
        if not stat.S_ISREG(found.st_mode):
            raise _wrong(place, "it is not a file")
        if found.st_mode & _BY_OTHERS:
            mode = f"mode {stat.S_IMODE(found.st_mode):o}"
            raise _wrong(place, f"others may read or change it ({mode}); say `chmod 600`")
        if found.st_size > MAX_BYTES:
            raise _wrong(place, f"it has {found.st_size} bytes, expected at most {MAX_BYTES}")
        return place.read_text(encoding="ascii")
    except OSError as error:
        raise _wrong(place, error.strerror or "it cannot be read") from error
    except UnicodeDecodeError as error:
        raise _wrong(place, f"byte {error.start} is not ASCII; expected printable ASCII") from error


def _wrong(path: Path, why: str) -> ConfigError:
    return ConfigError(f"--api-key-file {brief(str(path))}: {why}", param="api-key-file")
