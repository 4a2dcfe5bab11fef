"""Which instructions products may use."""

from pathlib import Path

import pytest

from runtime import processor
from runtime.process_life import thread_environment
from runtime.processor import MAX_ISA, hides_tiles, product_environment

WITH_AMX = "processor\t: 0\ncpuid level\t: {level}\nflags\t\t: fpu avx512_bf16 amx_bf16 avx512_fp16 amx_tile amx_int8\n"


@pytest.mark.parametrize(
    "cpuinfo, expected",
    [
        (WITH_AMX.format(level=28), True),
        (WITH_AMX.format(level=29), False),
        (WITH_AMX.format(level=32), False),
        ("cpuid level\t: 13\nflags\t\t: fpu avx512_bf16\n", False),
        ("Features\t: fp asimd bf16\n", False),
        ("", False),
    ],
)
def test_tiles_are_hidden_if_cpuid_ends_before_their_leaf(cpuinfo: str, expected: bool) -> None:
    assert hides_tiles(cpuinfo) is expected


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(MAX_ISA, raising=False)
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    return tmp_path / "cpuinfo"


def test_workers_are_told_not_to_use_them(machine: Path) -> None:
    machine.write_text(WITH_AMX.format(level=28))
    assert thread_environment(1)[MAX_ISA] == "AVX512_CORE_FP16"


def test_what_the_user_says_of_instructions_wins(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.write_text(WITH_AMX.format(level=28))
    monkeypatch.setenv(MAX_ISA, "AVX2")
    assert product_environment() == {}


def test_other_processors_are_told_nothing(machine: Path) -> None:
    for text in (WITH_AMX.format(level=32), "Features\t: fp asimd bf16\n"):
        machine.write_text(text)
        assert product_environment() == {}


def test_a_processor_that_nothing_describes_goes_without_them(machine: Path) -> None:
    assert product_environment() == {MAX_ISA: "AVX512_CORE_FP16"}, "there is no such file"
    machine.mkdir()
    assert product_environment() == {MAX_ISA: "AVX512_CORE_FP16"}, "it cannot be read"
    machine.rmdir()
    machine.write_bytes(b"cpuid level\t: 28\nflags\t: amx_tile \xff\n")
    assert product_environment() == {MAX_ISA: "AVX512_CORE_FP16"}, "it is no text"
