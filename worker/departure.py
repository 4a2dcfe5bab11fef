"""Whether a worker serves, leaves or ends. Pure.

    | what happens                                   | SERVING                      | LEAVING                          |
    |------------------------------------------------|------------------------------|----------------------------------|
    | a stop signal                                  | LEAVING: it sends Leaving    | ENDING: it is the second one     |
    | Leave: nothing needs it, or its group leaves   | LEAVING                      | it ends as soon as it rests      |
    | it rests: nothing is in flight or in memory,   |                              | ENDING, if Leave has come        |
    | and the other ranks of its group rest, too     |                              |                                  |
    | its bound is over                              |                              | ENDING: others get what it has   |
    | no gateway knows it, or the gateway refuses it | it joins, or ends as refused | ENDING: nobody waits for it      |

It says Left when it is ENDING. A worker that is LEAVING does all that it did before: it only gets nothing new.
"""

from enum import StrEnum


class State(StrEnum):
    """The state of one worker process that has started."""

    SERVING = "serving"
    LEAVING = "leaving"
    ENDING = "ending"


class Departure:
    """How one worker leaves. `bound_s`: how long what it has begun may take; with 0 it ends at once."""

    def __init__(self, bound_s: float = 0.0) -> None:
        self.bound_s = bound_s
        self.state = State.SERVING
        self.is_free = False  # Leave has come
        self._ends_at = 0.0

    def look(self, num_signals: int, now: float, *, is_known: bool, rests: bool) -> State:
        """The state after all that has happened. `num_signals`: stop signals so far. `is_known`: a gateway counts this
        worker among its own. `rests` matters once it is free."""
        if self.state is State.SERVING and (num_signals or self.is_free):
            self.state, self._ends_at = State.LEAVING, now + self.bound_s
        is_done = num_signals > 1 or not is_known or now >= self._ends_at or (self.is_free and rests)
        if self.state is State.LEAVING and is_done:
            self.state = State.ENDING
        return self.state
