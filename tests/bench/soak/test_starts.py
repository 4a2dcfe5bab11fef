"""What the launcher's lines say of starts."""

from bench.soak.starts import Starts, endings
from deploy.life import Life, State, describe_restart
from deploy.sentences import Ended, describe_end

RUNNING = Life(State.RUNNING)


def test_lines_in_which_the_launcher_names_processes_that_ended() -> None:
    ended = "2026-11-23T23:20:54.389Z error baton unified-1.1 was killed by SIGKILL; it is started again at once"
    others = (
        "2026-11-23T23:20:54.1Z error unified-0.2 the group is broken why=x",
        "2026-11-23T23:21:03Z info baton stopping",
    )
    assert endings([others[0], ended, others[1]]) == [ended]


def line(ended: Ended, *, of_pause: bool = False, failures: int = 0) -> str:
    """As the supervisor says it."""
    life = Life(State.RUNNING, failures=failures).ended(None, 1.0, of_pause=of_pause)
    what = f"{describe_end(ended)}; {describe_restart(life, None, paused=ended.paused if of_pause else ())}"
    return f"2026-11-23T23:20:54.389Z error baton {what}"


def test_starts_are_told_apart_by_what_the_supervisor_says() -> None:
    lines = [
        line(Ended("d", -9, "")),
        line(Ended("d", -9, ""), failures=6),
        line(Ended("d", 3, "", "it was silent", "refused", paused=("d",)), of_pause=True),
        line(Ended("d", 2, "", "no such model", "config_error", was_ready=False)),
        line(Ended("d", -9, "", killed_because="gave no sign of life for 11 s")),
    ]
    assert Starts.told_in(lines) == Starts(counted=4, after_pauses=1)
    assert Starts.told_in([]) == Starts(0, 0)
