import json
from pathlib import Path
from typing import Any

import pytest

from gateway.model_folder import SamplingDefaults, read_model_folder
from protocol.errors import CheckpointError
from tests.gateway.folders import EOS, write_folder


def test_facts(tmp_path: Path) -> None:
    found = read_model_folder(write_folder(tmp_path, generation={"temperature": 1, "eos_token_id": [5, 6]}))
    assert (found.context_length, found.vocab_size, found.eos_token_ids) == (512, 300, (5, 6))
    assert found.defaults == SamplingDefaults(temperature=1.0)


def test_eos_of_the_config_when_generation_is_silent(tmp_path: Path) -> None:
    assert read_model_folder(write_folder(tmp_path, generation={})).eos_token_ids == (EOS,)


def test_what_is_not_applied_is_known(tmp_path: Path) -> None:
    generation = {"repetition_penalty": 1.05, "no_repeat_ngram_size": 0, "num_beams": 1, "suppress_tokens": None}
    assert read_model_folder(write_folder(tmp_path, generation=generation)).not_applied == {"repetition_penalty": 1.05}


def test_an_empty_folder_knows_nothing(tmp_path: Path) -> None:
    found = read_model_folder(tmp_path)
    assert (found.context_length, found.vocab_size, found.eos_token_ids) == (None, None, ())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", {"max_position_embeddings": "many"}),
        ("config.json", {"eos_token_id": "x"}),
        ("generation_config.json", {"temperature": -1}),
        ("generation_config.json", {"top_p": True}),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, content: Any) -> None:
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(CheckpointError, match=name):
        read_model_folder(tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        read_model_folder(tmp_path / "nowhere")
