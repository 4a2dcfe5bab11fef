"""What a holder finds and makes on its node: the model's fingerprint, and a folder of keys that ends with it."""

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from zmq.auth import create_certificates

from deploy.group_folders import GroupFolders
from protocol.errors import CheckpointError, ConfigError, brief
from runtime.keys import ALLOWED, GATEWAY, OWN, is_key

_READ_WHOLE: Final = (".json", ".jinja", ".model", ".txt")
_MAX_READ_BYTES: Final = 64 << 20


def fingerprint(model: Path) -> str:
    """A digest of what lies in the model's folder: small files as a whole, weights by name and size. Two workers
    compare the weights themselves when they join. CheckpointError if the folder cannot be read."""
    digest = hashlib.sha256()
    try:
        for path in sorted(file for file in model.iterdir() if file.is_file() and not file.name.startswith(".")):
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            if path.suffix in _READ_WHOLE and size <= _MAX_READ_BYTES:
                digest.update(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"args.model: cannot read {brief(str(model))}: {error.strerror or error}") from error
    return digest.hexdigest()[:16]


class NodeKeys:
    """A new pair of keys in a folder that only this user may open. The secret key never leaves it. `close` removes it;
    that of a holder that was killed is removed by the next one on the node."""

    def __init__(self) -> None:
        self._folders = GroupFolders()
        self.folder = Path(self._folders.make())
        (self.folder / ALLOWED).mkdir(mode=0o700)
        public, secret = create_certificates(self.folder, Path(OWN).stem)
        Path(secret).chmod(0o600)
        text = Path(public).read_text(encoding="utf-8")
        Path(public).unlink()
        self.public = text.partition('public-key = "')[2].partition('"')[0]

    def trust(self, gateway_key: str, allowed: Mapping[str, str]) -> None:
        """Makes `gateway_key` the gateway's, and `allowed`, by name, the list of those who may connect. ConfigError for
        what is no key."""
        for name, key in allowed.items():
            if not is_key(key) or "/" in name:
                raise ConfigError(f"the key of {brief(name)}: got {brief(key)}, expected 40 characters", param="keys")
        _write(self.folder / GATEWAY, gateway_key)
        for name, key in allowed.items():
            _write(self.folder / ALLOWED / f"{name}.key", key)
        for path in (self.folder / ALLOWED).glob("*.key"):
            if path.stem not in allowed:
                path.unlink()

    def close(self) -> None:
        """Removes the folder."""
        self._folders.close()


def _write(path: Path, key: str) -> None:
    """Writes a public certificate at once: readers see the old file or the new one."""
    text = f'metadata\ncurve\n    public-key = "{key}"\n'
    with contextlib.suppress(OSError):
        if path.read_text(encoding="utf-8") == text:
            return
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(0o600)
    os.replace(fresh, path)
