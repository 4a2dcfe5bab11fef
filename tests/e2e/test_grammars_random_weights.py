"""Models that have learnt nothing answer in grammars all the same: random weights, in several architectures."""

import shutil
from pathlib import Path

import pytest

from models.train.train import STORY_FOLDER
from testkit.checkpoints import Architecture, make_checkpoint
from tests.e2e.asking import answers_to
from tests.e2e.baton_process import BatonProcess

EOS = 2
FLAGS = "--port 0 --dtype float32 --max-total-tokens 16384"
PAIR, UNIFIED = "--prefill 1 --decode 1", "--prefill 0 --decode 0 --unified 1"


def make_model(folder: Path, arch: Architecture, num_tokens: int) -> Path:
    """Random weights with the bundled model's tokenizer, which knows 1024 tokens: others have no text."""
    make_checkpoint(folder, arch, vocab_size=num_tokens, eos_token_id=EOS)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(STORY_FOLDER / name, folder / name)
    return folder


@pytest.mark.slow
def test_random_weights_follow_schemas(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "qwen3", "qwen3", 1100)
    with BatonProcess("serve", str(folder), *FLAGS.split(), *PAIR.split(), log=tmp_path / "log") as baton:
        reasons = [reason for choices in answers_to(baton, range(12)) for reason, _ in choices]
    assert "stop" in reasons
