"""What is drawn of the mutants of many functions."""

from tests.mutants.generate import Generated, functions, mutants_of
from tests.mutants.sampling import sample

FUNCTIONS = [
    function
    for name in ("a", "b")
    for function in functions(f"room/{name}.py", "def f(a):\n    a.x()\n    return a < 1\n\ndef g(a): return not a\n")
]
EVERY = [mutant for function in FUNCTIONS for mutant in mutants_of(function)]


def nothing(_mutant: Generated) -> bool:
    return False


def test_a_sample_has_as_many_as_asked_for_in_the_order_of_the_files() -> None:
    drawn = sample(FUNCTIONS, 3, 0, nothing)
    assert len(set(drawn)) == 3 and set(drawn) <= set(EVERY)
    assert [(each.path, each.line) for each in drawn] == sorted((each.path, each.line) for each in drawn)


def test_a_seed_draws_the_same_again_and_another_seed_something_else() -> None:
    samples = {tuple(sample(FUNCTIONS, 3, seed, nothing)) for seed in range(20)}
    assert sample(FUNCTIONS, 3, 7, nothing) == sample(FUNCTIONS, 3, 7, nothing)
    assert len(samples) > 5 and {mutant for drawn in samples for mutant in drawn} == set(EVERY)


def test_what_is_skipped_is_replaced_and_at_most_all_are_drawn() -> None:
    def is_skipped(mutant: Generated) -> bool:
        return mutant.operator == "drop a call"

    assert set(sample(FUNCTIONS, 100, 0, nothing)) == set(EVERY)
    assert set(sample(FUNCTIONS, 100, 0, is_skipped)) == {each for each in EVERY if not is_skipped(each)}
    assert len(sample(FUNCTIONS, 4, 0, is_skipped)) == 4
