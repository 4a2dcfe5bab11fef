"""What `baton kernels build` builds, and what it refuses."""

import platform
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.cli import main
from model import cpu_build
from model.cpu_build import LEVELS, MACROS, Level, build_level, built_library, macros


def say(*words: str) -> int:
    return main(["kernels", *words])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return tmp_path / "baton" / "kernels"


@pytest.fixture
def built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The compiler's options of each library, which is empty."""
    architectures: list[tuple[str, ...]] = []

    def build(compiler: list[str], options: Sequence[str], path: Path) -> None:
        architectures.append(tuple(options))
        path.touch(0o700)

    monkeypatch.setattr(cpu_build, "_build", build)
    monkeypatch.setenv("CC", "true")
    return architectures


def test_each_level_size_and_type(
    built: list[tuple[str, ...]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say("build", "96", "256", "96") == 0
    expected = {(*level.flags, *macros(types, size)) for size in (96, 256) for types in MACROS for level in LEVELS}
    assert set(built) == expected and len(built) == len(expected)
    *lines, numbers = capsys.readouterr().out.splitlines()
    assert len(lines) == len(expected) and len(list(folder.glob("*.so"))) == len(expected)
    first = r"x86-64-v4-bf16, heads of 96, activations float32, KV float32: built in \d+\.\d s: /\S+"
    assert re.fullmatch(first, lines[0]) and all(": built in " in line for line in lines)
    assert re.fullmatch(rf"libraries: {len(expected)} built in \d+\.\d s, 0 already built", numbers)


def test_what_is_there_is_not_built_again_and_the_command_says_so(
    built: list[tuple[str, ...]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say("build", "256") == 0
    num_built = len(built)
    first = capsys.readouterr().out.splitlines()
    next(iter(folder.glob("*.so"))).unlink()
    assert say("build", "256", "96") == 0
    assert len(built) == num_built + 1 + num_built

    *lines, numbers = capsys.readouterr().out.splitlines()
    already = [line for line in lines if ": already built: " in line]
    assert [line.rpartition(" ")[2] for line in lines[:num_built]] == [line.rpartition(" ")[2] for line in first[:-1]]
    assert len(already) == num_built - 1 and all(line in lines[:num_built] for line in already)
    assert numbers.startswith(f"libraries: {num_built + 1} built in ")
    assert numbers.endswith(f" s, {num_built - 1} already built")


def test_without_sizes_those_of_most_models(built: list[tuple[str, ...]]) -> None:
    assert say("build") == 0
    assert {options[-1] for options in built} == {"-DHEAD_DIM=64", "-DHEAD_DIM=128"}


@pytest.mark.parametrize(
    "words, reason",
    [
        ((), "kernels: expected baton kernels build [HEAD_SIZE ...]"),
        (("make",), "kernels: got 'make', expected baton kernels build"),
        (("build", "0"), "got '0', expected an even head size from 2 to 1024"),
        (("build", "7"), "got '7', expected an even head size"),
        (("build", "64", "1026"), "got '1026', expected an even head size"),
        (("build", "64.0"), "got '64.0', expected an even head size"),
        (("build", "١٢٨"), "expected an even head size"),
    ],
)
def test_wrong_words(
    words: tuple[str, ...], reason: str, built: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(*words) == 2
    assert reason in capsys.readouterr().err and not built


def test_where_nothing_can_be_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "nothing-like-it")
    assert say("build") == 2
    assert "kernels build: CC: got 'nothing-like-it', which is not a program here" in capsys.readouterr().err
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert say("build") == 2
    assert "have no common levels" in capsys.readouterr().err


@pytest.mark.slow
def test_a_worker_of_this_machine_uses_what_was_built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Really built, for each level; the best that this CPU can run is then taken without a compiler."""
    if not cpu_build.levels_here():
        pytest.skip("this CPU's kind has no levels")
    options = macros(("bfloat16", "bfloat16"), 16)
    paths: dict[str, Path] = {}
    for level in LEVELS:
        assert isinstance(level, Level)
        paths[level.name], _ = build_level(level, options)
    monkeypatch.setenv("CC", "nothing-like-it")
    instructions = set(Path("/proc/cpuinfo").read_text().split())
    best = next(level for level in LEVELS if level.needs <= instructions)
    assert built_library(options) == paths[best.name]
