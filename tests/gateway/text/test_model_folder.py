import json
from pathlib import Path
from typing import Any

import pytest

from gateway.text.model_folder import model_facts, read_model_folder
from protocol.errors import CheckpointError
from protocol.logit_rules import LogitRules
from protocol.messages_gateway import SamplingParams
from runtime.model_config import ModelBasics
from tests.gateway.folders import EOS, write_folder


def test_facts(tmp_path: Path) -> None:
    found = read_model_folder(write_folder(tmp_path, generation={"temperature": 1, "eos_token_id": [5, 6]}))
    assert found.basics == ModelBasics(512, 300, (5, 6))
    assert found.defaults == SamplingParams(max_tokens=1, temperature=1.0)


def test_eos_of_the_config_when_generation_is_silent(tmp_path: Path) -> None:
    assert read_model_folder(write_folder(tmp_path, generation={})).basics.eos_token_ids == (EOS,)


def test_what_is_not_applied_is_known(tmp_path: Path) -> None:
    generation = {"no_repeat_ngram_size": 3, "typical_p": 1, "num_beams": 1, "suppress_tokens": None}
    assert read_model_folder(write_folder(tmp_path, generation=generation)).not_applied == {"no_repeat_ngram_size": 3}


@pytest.mark.parametrize(("penalty", "rules"), [(1.05, LogitRules(repetition_penalty=1.05)), (1, None)])
def test_the_models_own_penalty_is_a_rule(tmp_path: Path, penalty: float, rules: LogitRules | None) -> None:
    folder = write_folder(tmp_path, generation={"repetition_penalty": penalty})
    assert read_model_folder(folder).defaults.rules == rules


def test_an_empty_folder_knows_nothing(tmp_path: Path) -> None:
    assert read_model_folder(tmp_path).basics == ModelBasics()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", {"max_position_embeddings": "many"}),
        ("config.json", {"eos_token_id": "x"}),
        ("generation_config.json", {"temperature": -1}),
        ("generation_config.json", {"top_p": True}),
        ("generation_config.json", {"repetition_penalty": 0}),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, content: Any) -> None:
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(CheckpointError, match=name):
        read_model_folder(tmp_path)


def test_facts_of_the_configuration_are_known_where_it_names_an_architecture(tmp_path: Path) -> None:
    assert model_facts(tmp_path) == {} == model_facts(write_folder(tmp_path))
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8}
    write_folder(tmp_path, config=sizes | {"model_type": "mistral", "sliding_window": 128})  # whatever is served
    found = model_facts(tmp_path)
    assert (found["architecture"], found["layer.mixer.num_kv_heads"], found["rope.theta"]) == (
        '"mistral"',
        "8",
        "10000.0",
    )
    assert "context_length" not in found and found["max_position_embeddings"] == "512"


def test_an_architecture_that_no_worker_serves_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, config={"architectures": ["BertModel"]})
    with pytest.raises(CheckpointError, match="architectures: got"):
        model_facts(tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        read_model_folder(tmp_path / "nowhere")
