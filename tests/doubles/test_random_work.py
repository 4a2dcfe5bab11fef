from itertools import pairwise

from tests.doubles.random_work import MUCH_S, RandomWork


def test_a_seed_decides_what_takes_much() -> None:
    work, same = RandomWork(1, 0.3), RandomWork(1, 0.3)
    looks = [work.now() for _ in range(1000)]
    assert looks == [same.now() for _ in range(1000)]
    took = [after - before for before, after in pairwise(looks)]
    num_much = sum(each > MUCH_S / 2 for each in took)
    assert 200 < num_much < 400 and all(each < MUCH_S * 1.01 for each in took)


def test_without_a_chance_nothing_takes_anything() -> None:
    work = RandomWork(1, 0.0)
    assert {work.now() for _ in range(9)} == {0.0}
