import threading

from hypothesis import given
from hypothesis import strategies as st

from runtime.clock import Deadlines, MonotonicClock, ThreadWorkClock
from tests.counting import instructions


def test_the_monotonic_clock_never_goes_back() -> None:
    clock = MonotonicClock()
    times = [clock.now() for _ in range(100)]
    assert times == sorted(times)


def test_work_is_that_of_the_calling_thread() -> None:
    clock, other = ThreadWorkClock(), list[float]()
    start = clock.now()
    while clock.now() - start < 0.01:
        pass
    thread = threading.Thread(target=lambda: other.append(clock.now()))
    thread.start()
    thread.join()
    assert clock.now() - start >= 0.01 and other[0] < clock.now()


def test_those_whose_time_has_come_are_named_once_the_earliest_first() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, at in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("again", 2.0)):
        deadlines.set(key, at)
    assert deadlines.due(0.9) == []
    assert deadlines.due(2.0) == ["a", "b", "again"]
    assert deadlines.due(2.0) == [] and list(deadlines) == ["c"]


def test_the_last_word_counts() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("sooner", 9.0)
    deadlines.set("sooner", 2.0)
    deadlines.set("later", 1.0)
    deadlines.set("later", 5.0)
    deadlines.set("dropped", 1.0)
    deadlines.drop("dropped")
    deadlines.drop("unknown")
    assert deadlines.due(2.0) == ["sooner"]
    assert deadlines.due(4.9) == []
    assert deadlines.due(99.0) == ["later"]


WORDS = st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 20)))


@given(st.lists(st.one_of(WORDS, st.integers(0, 3)), max_size=60))
def test_as_a_table_that_is_looked_through(words: list[tuple[int, int | None] | int]) -> None:
    """A pair sets a deadline or drops it; a number lets time pass."""
    deadlines: Deadlines[int] = Deadlines()
    table: dict[int, int] = {}
    now = 0
    for word in words:
        if isinstance(word, int):
            now += word
            due = deadlines.due(now)
            assert [table[key] for key in due] == sorted(at for at in table.values() if at <= now)
            assert set(due) == {key for key, at in table.items() if at <= now}
            table = {key: at for key, at in table.items() if at > now}
        elif word[1] is None:
            deadlines.drop(word[0])
            table.pop(word[0], None)
        else:
            deadlines.set(word[0], word[1])
            table[word[0]] = word[1]
        assert set(deadlines) == set(table)


def test_what_counts_no_more_is_not_kept() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(10_000):
        deadlines.set(number, 1e9)
        deadlines.drop(number - 3)
    assert len(deadlines._heap) < 200 and len(list(deadlines)) == 3


def test_a_look_costs_the_same_however_many_wait() -> None:
    costs = []
    for num in (10, 200):
        deadlines: Deadlines[int] = Deadlines()
        for number in range(num):
            deadlines.set(number, 100.0 + number)
        costs.append(instructions(lambda waits=deadlines: waits.due(5.0)))  # type: ignore[misc]
    assert costs[0] == costs[1] > 0
