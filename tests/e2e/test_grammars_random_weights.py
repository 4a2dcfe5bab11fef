"""Models that have learnt nothing answer in grammars all the same: random weights, in several architectures."""

import shutil
from pathlib import Path

import pytest

from models.train.train import STORY_FOLDER
from testkit.checkpoints import ARCHITECTURES, Architecture, make_checkpoint
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


@pytest.mark.broad
@pytest.mark.parametrize("topology", (PAIR, UNIFIED))
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_random_weights_follow_five_hundred_schemas(arch: Architecture, topology: str, tmp_path: Path) -> None:
    """The eight cases have 504 schemas in all."""
    place = 2 * ARCHITECTURES.index(arch) + (topology == UNIFIED)
    folder = make_model(tmp_path / arch, arch, 1024 if topology == PAIR else 1100)
    with BatonProcess("serve", str(folder), *FLAGS.split(), *topology.split(), log=tmp_path / "log") as baton:
        found = answers_to(baton, range(1000 + 63 * place, 1063 + 63 * place))
    reasons = [reason for choices in found for reason, _ in choices]
    assert reasons.count("stop") > 0.5 * len(reasons)
