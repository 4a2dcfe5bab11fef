from pathlib import Path

import pytest

from deploy.model_folder import (
    check_capacity,
    check_context_length,
    find_model,
    find_tokenizer,
    has_tokenizer,
    model_name,
)
from protocol.errors import ConfigError


def test_a_folder_with_config_json_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert find_model(str(tmp_path)) == tmp_path.resolve()
    assert not has_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert has_tokenizer(tmp_path)


def test_what_is_no_model_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_text("")
    with pytest.raises(ConfigError, match=r"--model: folder '/nowhere/x' does not exist$"):
        find_model("/nowhere/x")
    with pytest.raises(ConfigError, match="'owner/name' is no folder here and not whole in the hub's cache"):
        find_model("owner/name")
    with pytest.raises(ConfigError, match=r"^--tokenizer: folder 'texts' does not exist$"):
        find_tokenizer("texts")
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        find_model(str(tmp_path))
    with pytest.raises(ConfigError, match="is a file, expected a folder"):
        find_model(str(tmp_path / "weights.safetensors"))


@pytest.mark.parametrize(
    "folder, name",
    [
        ("/models/story", "story"),
        ("/cache/models--Qwen--Qwen3-0.6B/snapshots/abc123", "Qwen/Qwen3-0.6B"),
        ("/snapshots/abc", "abc"),
    ],
)
def test_the_name_that_clients_use(folder: str, name: str) -> None:
    assert model_name(Path(folder)) == name


@pytest.mark.parametrize("wanted", [1, 2049, 10**12])
def test_a_context_that_the_model_has_not_is_refused(tmp_path: Path, wanted: int) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 2048}')
    with pytest.raises(ConfigError, match=f"--context-length: got {wanted}, expected 2 to 2048"):
        check_context_length(tmp_path, wanted)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"max_position_embeddings": "x"}', '{"max_position_embeddings": 8}'])
def test_what_cannot_be_known_at_the_door_is_let_in(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert check_context_length(tmp_path, 8) is None  # type: ignore[func-returns-value]
    assert check_context_length(tmp_path, None) is None  # type: ignore[func-returns-value]


def test_kv_for_less_than_a_context_is_said_or_refused(tmp_path: Path) -> None:
    assert check_capacity(tmp_path, None, 5) is None, "nobody knows how long the model's context is"
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 2048}')
    assert check_capacity(tmp_path, None, None) is None and check_capacity(tmp_path, None, 2048) is None
    assert check_capacity(tmp_path, 64, None) is None and check_capacity(tmp_path, 64, 64) is None
    assert check_capacity(tmp_path, None, 2047) == (
        "--max-total-tokens 2047 is less than the model's context of 2048 tokens: "
        "requests may be 2047 tokens long, prompt and output together"
    )
    with pytest.raises(ConfigError, match="--max-total-tokens: got 63, expected at least --context-length, 64"):
        check_capacity(tmp_path, 64, 63)
