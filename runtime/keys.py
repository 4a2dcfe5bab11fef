"""A folder of keys: who we are, which gateway is ours, and who may connect to us.

    own.key_secret   our pair, for nobody else's eyes     allowed/NAME.key   public keys of all who may connect
    gateway.key      the gateway's public key

Files are ZeroMQ certificates; `baton keys` (deploy/keys.py) makes them. ConfigError for a folder that is not so, or
that others of this machine could read or change. What it does not know: sockets (curve.py).
"""

import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from zmq.auth import load_certificate
from zmq.utils import z85

from protocol.brief import SHOWN_CHARS
from protocol.errors import ConfigError

OWN = "own.key_secret"
GATEWAY = "gateway.key"
ALLOWED = "allowed"
KEY_CHARS = 40  # a key as text
_READ, _WRITE = 0o077, 0o022  # by others than its owner


@dataclass(frozen=True)
class Keys:
    """What a folder holds. Keys are text, as in the files; see `allowed_in` for those that may change."""

    folder: Path
    public: str
    secret: str
    gateway: str  # public

    @property
    def is_gateway(self) -> bool:
        """Whether workers that have such a folder take us for their gateway."""
        return self.public == self.gateway

    def __repr__(self) -> str:
        return f"Keys({str(self.folder)!r}, {self.public!r})"  # without the secret, wherever it is shown


def read_keys(folder: str | Path, *, for_gateway: bool = False) -> Keys:
    """The keys in `folder`; ConfigError names what is wrong, and for a gateway also a folder that is a worker's."""
    place = Path(folder)
    if not place.is_dir():
        raise _wrong(place, "it is no folder" if place.exists() else "it does not exist")
    if not (place / OWN).exists():
        inner = sorted(path.parent.name for path in place.glob(f"*/{OWN}"))
        hint = f"expected one of the folders in it: {', '.join(inner[:8])}" if inner else "`baton keys new` makes one"
        raise _wrong(place, f"it has no {OWN}; {hint}")
    _refuse_others(place / OWN, _READ, "read")
    for path in (place, place / GATEWAY):
        _refuse_others(path, _WRITE, "change")
    public, secret = _read_pair(place / OWN)
    found = Keys(place, public, secret, read_public(place / GATEWAY))
    if not allowed_in(place):
        raise _wrong(place / ALLOWED, "it holds no key, so nobody could connect")
    if for_gateway and not found.is_gateway:
        raise _wrong(place, f"it is a worker's: its own key is not the one in {GATEWAY}")
    return found


def allowed_in(folder: Path) -> dict[str, str]:
    """Who may connect at this moment: names by public key. ConfigError for a file that is no public key, or others'."""
    place = folder / ALLOWED
    files = sorted(place.glob("*.key"))
    for path in (place, *files):
        _refuse_others(path, _WRITE, "change")
    return {read_public(path): path.stem for path in files}


def read_public(path: Path) -> str:
    """The public key in a certificate."""
    return _read(path)[0]


def is_key(text: str) -> bool:
    """Whether `text` is a key, as text."""
    try:
        return len(text) == KEY_CHARS and len(z85.decode(text)) == 32
    except (ValueError, KeyError, struct.error):  # a length, a character, or five of them that are too large a number
        return False


def _read_pair(path: Path) -> tuple[str, str]:
    public, secret = _read(path)
    if not is_key(secret):
        raise _wrong(path, "it holds no secret key")
    return public, secret


def _read(path: Path) -> tuple[str, str]:
    try:
        public, secret = load_certificate(path)
        texts = public.decode("ascii"), (secret or b"").decode("ascii")
    except OSError as error:
        raise _wrong(path, error.strerror or "it is not there") from error
    except (ValueError, IndexError) as error:  # no key in it, no value, or what is no text
        raise _wrong(path, "it is no key file") from error
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


def _wrong(path: Path, why: str) -> ConfigError:
    text = str(path)
    shown = text if len(text) <= SHOWN_CHARS else f"...{text[-SHOWN_CHARS:]}"  # the end says which file it is
    return ConfigError(f"--keys: {shown!r}: {why}", param="keys")
