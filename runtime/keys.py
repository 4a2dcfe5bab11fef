"""The keys that a process reads: a folder of CURVE keys (`--keys`), and a file of API keys (`--api-key-file`).

    own.key_secret   the process's own pair, secret     allowed/NAME.key   public keys that may connect
    gateway.key      the gateway's public key

Files of the folder are ZeroMQ certificates; `baton keys` (deploy/keys.py) makes them. The file of API keys has one a
line; blank lines and lines that begin with # are skipped. ConfigError for what is missing, or what other users of this
machine may read or change.
"""

import re
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from zmq.auth import load_certificate
from zmq.utils import z85

from protocol.errors import SHOWN_CHARS, ConfigError, brief
from runtime.files import Unreadable, read_text

OWN = "own.key_secret"
GATEWAY = "gateway.key"
ALLOWED = "allowed"
KEY_CHARS = 40  # length of a key as text
_READ, _WRITE = 0o077, 0o022  # permissions of users other than the owner
_API_KEY = re.compile(r"[\x21-\x7e]{1,512}\Z")
_API_KEYS_MODE = 0o026  # permissions that others must not have to a file of API keys: its group may read it
MAX_API_KEYS_BYTES = 1 << 20


@dataclass(frozen=True)
class Keys:
    """The keys of a folder, as text. The keys that may connect can change: see `allowed_in`."""

    folder: Path
    public: str
    secret: str
    gateway: str  # the gateway's public key

    @property
    def is_gateway(self) -> bool:
        """Whether this is the gateway's own folder."""
        return self.public == self.gateway

    def __repr__(self) -> str:
        return f"Keys({str(self.folder)!r}, {self.public!r})"  # never shows the secret


def read_keys(folder: str | Path, *, for_gateway: bool = False) -> Keys:
    """The keys in `folder`. ConfigError names what is wrong; `for_gateway` also refuses a worker's folder."""
    root = Path(folder)
    if not root.is_dir():
        raise _wrong(root, "it is not a folder" if root.exists() else "it does not exist")
    if not (root / OWN).exists():
        inner = sorted(path.parent.name for path in root.glob(f"*/{OWN}"))
        hint = f"expected one of the folders in it: {', '.join(inner[:8])}" if inner else "`baton keys new` makes one"
        raise _wrong(root, f"it has no {OWN}; {hint}")

    _refuse_others(root / OWN, _READ, "read")
    for path in (root, root / GATEWAY):
        _refuse_others(path, _WRITE, "change")

    public, secret = _read(root / OWN)
    if not is_key(secret):
        raise _wrong(root / OWN, "it holds no secret key")
    keys = Keys(root, public, secret, _read(root / GATEWAY)[0])

    if not allowed_in(root):
        raise _wrong(root / ALLOWED, "it holds no key, so no process could connect")
    if for_gateway and not keys.is_gateway:
        raise _wrong(root, f"it is the folder of a worker: its own key is not the one in {GATEWAY}")

    return keys


def allowed_in(folder: Path) -> dict[str, str]:
    """Names by public key of all who may connect now. ConfigError for a file that is no public key, or that other users
    may change."""
    allowed = folder / ALLOWED
    files = sorted(allowed.glob("*.key"))
    for path in (allowed, *files):
        _refuse_others(path, _WRITE, "change")
    return {_read(path)[0]: path.stem for path in files}


def is_key(text: str) -> bool:
    """Whether `text` is a key in text form."""
    try:
        return len(text) == KEY_CHARS and len(z85.decode(text)) == 32
    except (ValueError, KeyError, struct.error):  # wrong length or characters, or too large a number
        return False


def _read(path: Path) -> tuple[str, str]:
    """The public and the secret key in a certificate; the secret key is "" in a public one."""
    try:
        public, secret = load_certificate(path)
        texts = public.decode("ascii"), (secret or b"").decode("ascii")
    except OSError as error:
        raise _wrong(path, error.strerror or "it does not exist") from error
    except (ValueError, IndexError) as error:  # no key in it, no value, or not text
        raise _wrong(path, "it is not a key file") from error
    if not is_key(texts[0]):
        raise _wrong(path, "its public key is damaged")
    return texts


def _refuse_others(path: Path, bits: int, may: str) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _wrong(path, error.strerror or "it cannot be read") from error
    if mode & bits:
        ways = "go-rwx" if bits == _READ else "go-w"
        raise _wrong(path, f"others may {may} it (mode {stat.S_IMODE(mode):o}); say `chmod {ways}` of it")


def _wrong(path: Path, reason: str) -> ConfigError:
    text = str(path)
    shown = text if len(text) <= SHOWN_CHARS else f"...{text[-SHOWN_CHARS:]}"  # keep the end, which names the file
    return ConfigError(f"--keys: {shown!r}: {reason}", param="keys")


def read_api_keys(path: str | Path) -> tuple[str, ...]:
    """The API keys in a file, in its order. Error messages never quote a key."""

    def wrong(reason: str) -> ConfigError:
        return ConfigError(f"--api-key-file {brief(str(path))}: {reason}", param="api-key-file")

    try:
        text = read_text(Path(path), MAX_API_KEYS_BYTES, "ascii")
        mode = Path(path).stat().st_mode
    except (Unreadable, OSError) as error:
        raise wrong(str(error)) from None
    if mode & _API_KEYS_MODE:
        raise wrong(f"others may read or change it (mode {stat.S_IMODE(mode):o}); say `chmod 600`")

    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        key = line.strip()
        if key and not key.startswith("#"):
            if not _API_KEY.match(key):
                raise wrong(f"line {number}: expected one key of 1 to 512 printable characters, without spaces")
            keys.append(key)
    if not keys:
        raise wrong("it holds no key; expected one a line")
    return tuple(dict.fromkeys(keys))
