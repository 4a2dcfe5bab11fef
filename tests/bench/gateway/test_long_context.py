"""A folder with a longer context has all else of the model."""

import json
from pathlib import Path

from bench.gateway.long_context import long_context

MODEL = Path("models/story")


def test_the_configuration_alone_is_another_one() -> None:
    with long_context(MODEL, 1 << 20) as folder:
        assert {file.name for file in folder.iterdir()} == {file.name for file in MODEL.iterdir()}
        own = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
        assert json.loads((folder / "config.json").read_text(encoding="utf-8")) == own | {
            "max_position_embeddings": 1 << 20
        }
        assert (folder / "tokenizer.json").read_bytes() == (MODEL / "tokenizer.json").read_bytes()
    assert not folder.exists()
