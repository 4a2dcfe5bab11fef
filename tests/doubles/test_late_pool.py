import pytest

from tests.doubles.late_pool import MOST_LOOKS, LatePool


@pytest.mark.parametrize(
    ("chance", "fewest", "most"), [(0.0, MOST_LOOKS, MOST_LOOKS), (0.3, 1, MOST_LOOKS), (1.0, 1, 1)]
)
def test_work_is_over_at_a_look_that_the_seed_chooses_and_soon_enough(chance: float, fewest: int, most: int) -> None:
    pool, found = LatePool(7, chance), set[int]()
    for number in range(100):
        future, num_looks = pool.submit(lambda number=number: number), 1
        while not future.done():
            num_looks += 1
        found.add(num_looks)
        assert future.result() == number and future.done()
    assert fewest <= min(found) and max(found) <= most and (len(found) > 3) == (fewest < most)
