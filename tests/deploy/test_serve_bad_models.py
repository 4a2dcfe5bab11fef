"""`baton serve` with real processes on damaged folders: one clear last line, status 2, nothing left behind."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from testkit.checkpoints import make_checkpoint
from tests.e2e.baton_process import PATIENCE_S
from tests.gateway.folders import byte_tokenizer
from tests.processes import command_line, python_path

pytestmark = pytest.mark.broad
PROJECT = Path(__file__).resolve().parents[2]
NORM = "model.norm.weight"


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def spoil(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(path).items()}
    weights[NORM][3:5] = torch.nan
    save_file(weights, path)


def break_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "Dream"}}')


@pytest.mark.parametrize(
    "damage, flags, says",
    [
        (cut, [], "model.safetensors: truncated: "),
        (spoil, ["--check-weights"], f"model.safetensors: {NORM}: 2 of 48 values are NaN or infinite, expected finite"),
        (break_tokenizer, [], "tokenizer.json: "),
    ],
    ids=["cut", "nan", "tokenizer"],
)
def test_a_damaged_folder_ends_baton_serve(damage: object, flags: list[str], says: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny", "llama", num_hidden_layers=1)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    assert callable(damage)
    damage(folder)
    process = subprocess.Popen(
        [sys.executable, "-m", "deploy", "serve", "--model", str(folder), "--port", "0", "--threads", "1", *flags],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": python_path(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2, said
    assert says in said.splitlines()[-1]
    assert "Traceback" not in said
    left = [process for process in psutil.process_iter() if str(folder) in " ".join(command_line(process))]
    assert left == []
