"""`baton keys`: makes the folders for `--keys`, one for the gateway and one for each host of workers.

    keys/gateway/   own.key_secret  gateway.key  allowed/{gateway,host-a,host-b}.key
    keys/host-a/    own.key_secret  gateway.key  allowed/{gateway,host-a,host-b}.key
    ...

All `allowed` lists are equal. Each folder is complete: copy a host's folder, and no other, to that host.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from zmq.auth import create_certificates

from protocol.errors import ConfigError, brief, brief_name
from runtime.keys import ALLOWED, GATEWAY, OWN, allowed_in, read_keys

GATEWAY_NAME = "gateway"
WORKER_NAME = "worker"  # used if no host is named
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VERBS = "new", "list", "revoke"


def keys(words: Sequence[str], usage: str) -> list[str]:
    """Runs `baton keys WORDS`; returns the lines to print. Raises ConfigError for wrong words."""
    verb, names = words[0] if words else "", words[2:]
    folder = Path(words[1]).expanduser() if len(words) > 1 else None

    if verb not in _VERBS:
        got = f"got {brief(verb)}, expected" if words else "expected"
        raise ConfigError(f"keys: {got} one of {', '.join(_VERBS)}; {usage}")
    if folder is None or (verb == "list" and names) or (verb == "revoke" and len(names) != 1):
        raise ConfigError(f"keys {verb}: expected {usage}")
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"keys {verb}: got the name {brief(name)}, expected letters, digits, '.', '_' and '-'")

    try:
        if verb == "new":
            return new(folder, names)
        return list_keys(folder) if verb == "list" else revoke(folder, names[0])
    except OSError as error:
        raise ConfigError(f"keys {verb}: {error.filename or folder}: {error.strerror or error}") from error


def new(folder: Path, names: Sequence[str]) -> list[str]:
    """Makes a key pair and a folder for each of `names`, and for the gateway if `folder` is new. Every folder lists all
    public keys."""
    is_new = not (folder / GATEWAY_NAME).exists()
    if is_new and folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"keys new: {folder} is not empty, and holds no keys; expected a new folder")
    if not is_new:
        read_keys(folder / GATEWAY_NAME, for_gateway=True)
        if not names:
            raise ConfigError(f"keys new: {folder} has keys; name the hosts to add: baton keys new {folder} NAME ...")

    wanted = [*([GATEWAY_NAME] if is_new else []), *dict.fromkeys(names or [WORKER_NAME])]
    for name in wanted:
        if (folder / name).exists() or wanted.count(name) > 1:
            raise ConfigError(f"keys new: {folder / name} is there already; expected another name")

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in wanted:
        _make(folder, name)
    members = _members(folder)
    for member in members:
        for other in members:
            _copy(folder / other / ALLOWED / f"{other}.key", folder / member / ALLOWED)

    whose = {GATEWAY_NAME: "the gateway"}
    lines = [f"{folder / name}: --keys of {whose.get(name, 'workers')}" for name in wanted]
    if not is_new:
        files = " ".join(str(folder / GATEWAY_NAME / ALLOWED / f"{name}.key") for name in wanted)
        lines.append(f"Copy {files} into {ALLOWED}/ of the other hosts' folders: no process need be started again.")
    return lines


def list_keys(folder: Path) -> list[str]:
    """One line for each allowed key: its name and the public key."""
    keys_folder = folder / GATEWAY_NAME if (folder / GATEWAY_NAME).is_dir() else folder
    read_keys(keys_folder)
    return [f"{name:<20} {public}" for public, name in allowed_in(keys_folder).items()]


def revoke(folder: Path, name: str) -> list[str]:
    """Removes a name from every list and deletes its folder."""
    read_keys(folder / GATEWAY_NAME, for_gateway=True)
    known = sorted(allowed_in(folder / GATEWAY_NAME).values())
    if name == GATEWAY_NAME or name not in known:
        others = ", ".join(other for other in known if other != GATEWAY_NAME)
        expected = f"expected one of {others}" if others else "but no name is left to revoke"
        raise ConfigError(f"keys revoke: got {brief_name(name)}, {expected}")

    if (folder / name / OWN).exists():
        shutil.rmtree(folder / name)
    for member in _members(folder):
        (folder / member / ALLOWED / f"{name}.key").unlink(missing_ok=True)
    return [
        f"Delete {ALLOWED}/{name}.key on the other hosts too: then no new connection can use this key.",
        "A connection that uses it already lasts until one of its two processes is started again.",
    ]


def _members(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob(f"*/{OWN}"))


def _make(folder: Path, name: str) -> None:
    member_folder = folder / name
    for new_folder in (member_folder, member_folder / ALLOWED):
        new_folder.mkdir(mode=0o700)
    public, secret = create_certificates(member_folder, Path(OWN).stem)
    Path(secret).chmod(0o600)  # until now the folder's mode 0700 protected the file
    Path(public).chmod(0o600)
    Path(public).rename(member_folder / ALLOWED / f"{name}.key")
    _copy(folder / GATEWAY_NAME / ALLOWED / f"{GATEWAY_NAME}.key", member_folder, GATEWAY)


def _copy(source: Path, target: Path, name: str = "") -> None:
    copied = target / (name or source.name)
    if source.resolve() != copied.resolve():
        copied.write_bytes(source.read_bytes())
        copied.chmod(0o600)
