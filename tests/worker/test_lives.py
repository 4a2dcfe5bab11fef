"""One life after another: each with an instance of its own, and none before the one before is closed."""

from typing import Any, cast

import pytest

from protocol.errors import Unavailable
from worker.lives import Lives, new_instance
from worker.loop import WorkerLoop
from worker.parts import Ending


class Life:
    """A loop that ends as it is told to."""

    def __init__(self, instance: int, ending: Ending | Exception, done: list[str]) -> None:
        self.register: Any = type("Register", (), {"address": type("Address", (), {"instance": instance})})
        self.instance, self._ending, self._done = instance, ending, done

    def run(self) -> Ending:
        self._done.append("runs")
        if isinstance(self._ending, Exception):
            raise self._ending
        return self._ending

    def close(self) -> None:
        self._done.append("closed")


def lives(endings: list[Ending | Exception]) -> tuple[Lives, list[str], list[int]]:
    done, instances, left = list[str](), list[int](), iter(endings)

    def begin(instance: int) -> WorkerLoop:
        done.append("begins")
        instances.append(instance)
        return cast(WorkerLoop, Life(instance, next(left), done))

    return Lives(begin), done, instances


def test_each_life_begins_when_the_sockets_of_the_one_before_are_closed() -> None:
    made, done, instances = lives([Ending.LOST, Ending.LOST, Ending.LEFT])
    made.run()
    assert done == ["begins", *["runs", "closed", "begins"] * 2, "runs"]
    assert len(set(instances)) == 3 and made.now.register.address.instance == instances[-1]


def test_what_a_life_raises_ends_the_process() -> None:
    made, done, _ = lives([Ending.LOST, Unavailable("no gateway has answered")])
    with pytest.raises(Unavailable):
        made.run()
    assert done == ["begins", "runs", "closed", "begins", "runs"]


def test_an_instance_is_never_drawn_twice() -> None:
    drawn = [new_instance() for _ in range(1000)]
    assert len(set(drawn)) == 1000 and all(0 <= instance < 2**62 for instance in drawn)
