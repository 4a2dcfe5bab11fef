"""How the C code is built, kept and done without."""

import fcntl
import os
import platform
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from model import cpu_build
from model.cpu_build import (
    LEVELS,
    UNFINISHED,
    Level,
    NoKernels,
    build_level,
    built_library,
    cache_folder,
    find_compiler,
)
from model.cpu_kernels import CpuKernels, load_kernels
from model.fake import FakeRunner
from model.passes import TorchPasses
from model.runner import ModelRunner
from testkit.checkpoints import make_checkpoint
from tests.model.driving import Lanes


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "baton" / "kernels"


DEFINES = ["-DHEAD_DIM=16"]


def libraries(folder: Path) -> list[Path]:
    return list(folder.glob("*.so"))


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cpu_build, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return tmp_path / "cpuinfo"


def _like_an_image(monkeypatch: pytest.MonkeyPatch, *levels: Level) -> dict[str, Path]:
    """The libraries of these levels are there, and no compiler is."""
    monkeypatch.setattr(cpu_build, "_build", lambda compiler, options, path: path.touch(0o700))
    monkeypatch.setenv("CC", "true")
    found = {level.name: build_level(level, DEFINES)[0] for level in levels}
    monkeypatch.setenv("CC", "nothing-like-it")
    return found


@pytest.mark.slow
def test_built_once_and_kept(own_cache: Path) -> None:
    first = built_library(DEFINES)
    made = first.stat()
    assert first.parent == own_cache and own_cache.stat().st_mode & 0o077 == 0
    assert built_library(DEFINES) == first and first.stat() == made
    assert built_library(["-DHEAD_DIM=32"]) != first
    assert len(libraries(own_cache)) == 2
    assert not list(own_cache.glob(f"{UNFINISHED}*"))


@pytest.mark.slow
def test_of_workers_that_start_together_one_builds(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that keeps a record counts how often each file is compiled; processes start at the same time."""
    record, program = tmp_path / "record", tmp_path / "compiler"
    program.write_text(f'#!/bin/sh\necho "$@" >>{record}\nexec {find_compiler()[0]} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("CC", str(program))
    command = [sys.executable, "-c", f"from model.cpu_build import built_library; print(built_library({DEFINES}))"]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found = {worker.communicate()[0].strip() for worker in workers}
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert found == {str(path) for path in libraries(own_cache)} and len(found) == 1
    compiled = [line for line in record.read_text().splitlines() if " -c " in line]
    assert len(compiled) == len(cpu_build.SOURCES)


@pytest.mark.slow
def test_a_worker_that_was_killed_while_it_built_leaves_nothing(own_cache: Path) -> None:
    left = cache_folder() / f"{UNFINISHED}of-another"
    left.mkdir()
    (left / "cpu_team.c.o").write_bytes(b"half")
    assert built_library(DEFINES).exists() and not left.exists()


def test_a_worker_waits_for_the_lock_and_then_finds_the_library(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other worker holds the lock until this one asks for it."""
    path = cache_folder() / "library.so"
    held = os.open(own_cache / cpu_build.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    flock = fcntl.flock

    def ask(descriptor: int, operation: int) -> None:
        with pytest.raises(BlockingIOError):
            flock(descriptor, operation | fcntl.LOCK_NB)
        path.touch()
        os.close(held)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", ask)
    monkeypatch.setattr(cpu_build, "_build", None)
    cpu_build._build_once(["cc"], [], path)
    assert path.exists()


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
    assert {path.name for path in own_cache.glob("*")} <= {cpu_build.LOCK}, "nothing half-built stays"


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


def test_folders_that_it_makes_are_trusted_whatever_the_umask(own_cache: Path) -> None:
    before = os.umask(0o002)
    try:
        assert cache_folder() == own_cache
    finally:
        os.umask(before)
    assert [each.stat().st_mode & 0o777 for each in (own_cache, *own_cache.parents[:2])] == [0o700] * 3


def test_a_folder_below_one_that_others_can_write_is_not_trusted(own_cache: Path) -> None:
    """They could put another in its place; not where the sticky bit is, as in /tmp."""
    above = cache_folder().parents[1]
    for mode in (0o777, 0o775, 0o757):
        above.chmod(mode)
        with pytest.raises(NoKernels, match=f"{above} can be written by other users") as refused:
            built_library(DEFINES)
    remedy = str(refused.value).partition("; ")[2]
    assert remedy == f"run `chmod g-w,o-w {above}`, or set XDG_CACHE_HOME to another folder"
    subprocess.run(shlex.split(remedy.split("`")[1]), check=True)
    assert cache_folder() == own_cache
    above.chmod(0o1777)
    assert cache_folder() == own_cache


@pytest.mark.parametrize("whose", ["the folder", "one above"])
def test_a_folder_of_another_user_is_not_trusted(whose: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders belong to this user, who then is another."""
    folder = cache_folder()
    foreign = folder if whose == "the folder" else folder.parents[1]
    stat = Path.stat

    def told(path: Path, **options: Any) -> os.stat_result:
        found = stat(path, **options)
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:])) if path == foreign else found

    monkeypatch.setattr(Path, "stat", told)
    says = f"{foreign} belongs to another user, expected this user and root alone; set XDG_CACHE_HOME to another folder"
    with pytest.raises(NoKernels, match=f"^{says}$"):
        built_library(DEFINES)


@pytest.mark.parametrize(
    "fault", ["can be written by other users", "belongs to another user", "cannot be read: No such"]
)
def test_a_library_that_others_may_have_written_is_not_loaded(
    fault: str, own_cache: Path, described: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described.write_text(f"flags : {' '.join(sorted(LEVELS[0].needs))}\n")
    path = _like_an_image(monkeypatch, LEVELS[0])[LEVELS[0].name]
    assert built_library(DEFINES) == path
    if fault.startswith("can be"):
        path.chmod(0o770)
    elif fault.startswith("belongs"):
        found = path.lstat()
        foreign = os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))
        monkeypatch.setattr(Path, "lstat", lambda path: foreign)
    else:
        path.unlink()
        monkeypatch.setattr(Path, "exists", lambda path: True)  # it was there a moment ago
    with pytest.raises(NoKernels, match=f"{path.name} {fault}"):
        built_library(DEFINES)


@pytest.mark.parametrize("fault", ["absent", "a folder"])
def test_a_processor_that_nothing_describes(
    fault: str, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_build, "_CPUINFO", tmp_path / "cpuinfo")
    if fault == "a folder":
        (tmp_path / "cpuinfo").mkdir()
    with pytest.raises(NoKernels, match=r"cpuinfo cannot be read: (No such file|Is a directory)"):
        built_library(DEFINES)


# ---- libraries for other CPUs, as an image has them ----


def test_a_worker_takes_the_best_library_that_its_cpu_can_run(
    own_cache: Path, described: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = _like_an_image(monkeypatch, *LEVELS)
    assert len(set(paths.values())) == len(LEVELS)
    for level in LEVELS:
        described.write_text(f"model name : any\nflags : fpu {' '.join(sorted(level.needs))}\n")
        assert built_library(DEFINES) == paths[level.name]
        for missing in sorted(level.needs):
            described.write_text(f"flags : {' '.join(sorted(level.needs - {missing}))}\n")
            with suppress(NoKernels):  # which says that one would be built for this CPU
                assert built_library(DEFINES) != paths[level.name], missing
    with pytest.raises(NoKernels, match="nothing-like-it"):
        built_library(["-DHEAD_DIM=32"])


def test_a_level_that_the_image_lacks_is_passed_over(
    own_cache: Path, described: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = _like_an_image(monkeypatch, LEVELS[-1])
    described.write_text(f"flags : {' '.join(sorted(LEVELS[0].needs))}\n")
    assert built_library(DEFINES) == paths[LEVELS[-1].name]
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(NoKernels, match="nothing-like-it"):
        built_library(DEFINES)


def test_a_level_needs_what_the_compiler_is_told_to_use() -> None:
    """The names of /proc/cpuinfo for the instructions that these flags allow."""
    for level in LEVELS:
        assert {"avx2", "fma"} <= level.needs
        assert ("avx512vl" in level.needs) is ("v4" in level.flags[0])
        assert ("avx512_bf16" in level.needs) is ("-mavx512bf16" in level.flags)


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
    config = FakeRunner(head_dim=16).config
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
