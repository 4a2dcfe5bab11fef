"""A model's folder with a longer context: what is measured is time and the cache, and not what the model says."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONFIG = "config.json"


@contextmanager
def long_context(model: Path, length: int) -> Iterator[Path]:
    """A temporary folder with links to the files of `model`, whose configuration says `length` tokens."""
    with tempfile.TemporaryDirectory(prefix="baton-long-") as name:
        for file in model.resolve().iterdir():
            if file.is_file() and file.name != CONFIG:
                (Path(name) / file.name).symlink_to(file)
        config: dict[str, Any] = json.loads((model / CONFIG).read_text(encoding="utf-8"))
        config["max_position_embeddings"] = length
        (Path(name) / CONFIG).write_text(json.dumps(config), encoding="utf-8")
        yield Path(name)
