"""Parts of a ring never overlap, and come back in the order in which they were taken."""

import random
from collections import deque

import pytest

from transfer.backends.nixl.staging import Ring


@pytest.mark.parametrize("seed", range(20))
def test_parts_never_overlap_and_there_is_room_again_once_they_are_back(seed: int) -> None:
    rng = random.Random(seed)
    ring, taken, refused = Ring(100), deque[range](), 0
    for _ in range(400):
        size = rng.randint(1, rng.choice((10, 100)))
        start = ring.take(size)
        if start is None:
            refused += 1
            assert taken, "an empty ring takes everything"
            ring.give_back()
            taken.popleft()
        else:
            part = range(start, start + size)
            assert part.start >= 0 and part.stop <= 100
            assert all(part.stop <= other.start or other.stop <= part.start for other in taken)
            taken.append(part)
    assert refused > 10


def test_it_can_be_filled_to_the_last_byte() -> None:
    ring = Ring(10)
    assert [ring.take(4), ring.take(6), ring.take(1)] == [0, 4, None]
    ring.give_back()
    assert [ring.take(5), ring.take(4), ring.take(1)] == [None, 0, None]
    ring.give_back()
    assert ring.take(6) == 4
