"""How the C code is built, kept and done without."""

import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model import cpu_build
from model.cpu_build import NoKernels, built_library, cache_folder, find_compiler
from model.cpu_kernels import CpuKernels, load_kernels
from model.fake import FakeRunner
from model.passes import TorchPasses
from model.runner import ModelRunner
from tests.checkpoints import make_checkpoint
from tests.model.driving import Lanes


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "baton" / "kernels"


DEFINES = ["-DHEAD_DIM=16"]


@pytest.mark.slow
def test_built_once_and_kept(own_cache: Path) -> None:
    first = built_library(DEFINES)
    made = first.stat()
    assert first.parent == own_cache and own_cache.stat().st_mode & 0o077 == 0
    assert built_library(DEFINES) == first and first.stat() == made
    assert built_library(["-DHEAD_DIM=32"]) != first
    assert {path.suffix for path in own_cache.iterdir()} == {".so"}


@pytest.mark.slow
def test_workers_that_start_together_never_meet_half_a_library(own_cache: Path) -> None:
    found: list[Path] = []
    builders = [threading.Thread(target=lambda: found.append(built_library(DEFINES))) for _ in range(3)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert len(found) == 3 and len(set(found)) == 1 and list(own_cache.iterdir()) == found[:1]


@pytest.mark.slow
def test_another_source_is_built_again(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = built_library(DEFINES)
    for name in (*cpu_build.SOURCES, *cpu_build.HEADERS):
        (tmp_path / name).write_text((cpu_build.FOLDER / name).read_text())
    monkeypatch.setattr(cpu_build, "FOLDER", tmp_path)
    assert built_library(DEFINES) == first
    with (tmp_path / "cpu_team.h").open("a") as file:
        file.write("// changed\n")
    assert built_library(DEFINES) != first


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, own_cache: Path, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoKernels, match=r"no C compiler \(cc, gcc or clang\)"):
        built_library(DEFINES)


@pytest.mark.parametrize(
    "compiler, why",
    [
        ("nothing-like-it -O1", "CC: got 'nothing-like-it', which is no"),
        ("false", "false cannot build"),
        ("'gcc", 'CC: got "\'gcc", expected a command: No closing quotation'),
    ],
)
def test_a_compiler_that_does_not_work(
    compiler: str, why: str, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(NoKernels, match=why):
        built_library(DEFINES)
    assert not own_cache.exists() or not list(own_cache.iterdir()), "nothing half-built stays"


def test_a_compiler_that_cannot_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    (tmp_path / "cc").write_text("no program, no script")
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    with pytest.raises(NoKernels, match=r"cc cannot build them: .*Exec format error"):
        built_library(DEFINES)


@pytest.mark.slow
def test_a_compiler_may_have_arguments(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setenv("CC", f"{find_compiler()[0]} -g0")
    assert built_library(DEFINES).exists()


def test_an_endless_compiler_is_given_up(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    def ran(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(cpu_build, "_version", lambda compiler: "")
    monkeypatch.setattr(subprocess, "run", ran)
    with pytest.raises(NoKernels, match=r"timed out after 120\.0 seconds"):
        built_library(DEFINES)


def test_a_folder_that_others_can_write_is_not_trusted(own_cache: Path) -> None:
    cache_folder().chmod(0o777)
    with pytest.raises(NoKernels, match="can be written by other users"):
        built_library(DEFINES)


def test_a_cache_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(NoKernels, match="cannot be made: Not a directory"):
        cache_folder()


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a number that the system has no name for."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(NoKernels, match=r"no folder to keep them in: Could not determine home"):
        cache_folder()


def test_a_library_that_cannot_be_loaded(own_cache: Path) -> None:
    built_library(DEFINES).write_bytes(b"not a library")
    config = replace(FakeRunner().config, head_dim=16)
    with pytest.raises(NoKernels, match="cannot be loaded"):
        load_kernels(config, torch.float32, "float32")


@pytest.mark.slow
def test_a_model_is_served_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", "qwen3")
    fast = ModelRunner.load(folder, device="cpu")
    asked_not_to = ModelRunner.load(folder, device="cpu", cpu_kernels=False)
    monkeypatch.setenv("CC", "nothing-like-it")
    unable = ModelRunner.load(folder, device="cpu")
    passes = [type(runner.decoder.passes) for runner in (fast, asked_not_to, unable)]
    assert passes == [CpuKernels, TorchPasses, TorchPasses]
    prompt = list(range(1, 40))
    tokens = [Lanes(runner, 16).generate(prompt, 16) for runner in (fast, asked_not_to, unable)]
    assert tokens[0] == tokens[1] == tokens[2]
    assert os.environ["CC"] == "nothing-like-it", "the last was loaded without a compiler"
