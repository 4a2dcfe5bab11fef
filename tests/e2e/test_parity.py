"""Greedy tokens equal transformers' generate through real processes and HTTP: token ids in, token ids out."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testkit.reference import NUM_TOKENS, reference
from tests.e2e.baton_process import BatonProcess
from tests.parity.grid import EACH_VALUE, GRID, Combination
from tests.selecting import first

FEW = [next(each for each in EACH_VALUE if each.topology == topology) for topology in ("1P1D", "1U")]

SORTED = [*FEW, *(each for each in EACH_VALUE if each not in FEW)]


def flags_of(combination: Combination) -> list[str]:
    """The flags of `baton serve` that make this combination."""
    kinds = {"P": "--prefill", "D": "--decode", "U": "--unified"}
    counts = dict.fromkeys(kinds.values(), "0")
    topology = zip(combination.topology[::2], combination.topology[1::2], strict=True)
    counts |= {kinds[kind]: count for count, kind in topology}
    flags = [word for pair in counts.items() for word in pair]
    flags += ["--page-size", str(combination.page_size), "--chunked-prefill-size", str(combination.chunk_size)]
    return [*flags, *([] if combination.overlap else ["--disable-overlap-schedule"])]


def check_parity(combination: Combination, tmp_path: Path) -> None:
    expected = reference(combination.arch)
    argv = ["serve", "--model", str(expected.folder), "--port", "0", "--dtype", "float32", "--max-total-tokens", "2048"]
    argv += ["--pairing", "round_robin", *flags_of(combination)]
    with BatonProcess(*argv, log=tmp_path / "log") as baton, ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda p: baton.tokens(p, max_tokens=NUM_TOKENS, temperature=0), expected.prompts)
        for index, (got, continuation) in enumerate(zip(answers, expected.continuations, strict=True)):
            assert tuple(got) == continuation, f"prompt {index}"
        assert baton.wait_for_rest()


@pytest.mark.slow
@pytest.mark.parametrize("combination", first(len(FEW), SORTED, num_broad=3), ids=str)
def test_each_value_of_a_parameter(combination: Combination, tmp_path: Path) -> None:
    check_parity(combination, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("combination", GRID, ids=str)
def test_every_combination(combination: Combination, tmp_path: Path) -> None:
    check_parity(combination, tmp_path)
