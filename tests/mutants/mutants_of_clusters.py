"""Sabotages of Baton on a Ray cluster: which workers may join, how many a load needs, what a file may have."""

from tests.mutants.mutant import Mutant

MEETING = ("tests/deploy/ray/test_meeting.py",)
SCALING = ("tests/deploy/ray/test_scaling.py",)
CONFIG_FILE = ("tests/deploy/ray/test_config_file.py",)
CONFIG_TEXT = ("tests/deploy/ray/test_config_text_scaling.py",)
PLACEMENT = ("tests/deploy/ray/test_placement.py",)

CLUSTERS = (
    Mutant(
        "a worker starts before the others have its key on their lists",
        "Members.settled",
        "key in each.knows",
        "True",
        "one of them refuses it, and it does not ask again",
        (),
        MEETING,
    ),
    Mutant(
        "a node with another version or another model joins",
        "deploy/ray/meeting.py difference",
        "got != expected",
        "False",
        "it is found out by what its workers compute, if at all",
        (),
        MEETING,
    ),
    Mutant(
        "workers are taken away while one of them tells nothing",
        "deploy/ray/scaling.py wanted",
        "current if someone_is_silent else 1",
        "1",
        "one that is too busy to answer counts as idle",
        (),
        SCALING,
    ),
    Mutant(
        "the figure that needs least decides",
        "deploy/ray/scaling.py wanted",
        "max(1, *needs, __least)",
        "max(1, min(needs), __least)",
        "requests wait at full workers while another figure is calm",
        (),
        SCALING,
    ),
    Mutant(
        "a policy that is not named is left to Serve",
        "deploy/ray/config_file.py _check_policy",
        "not function",
        "False",
        "Serve counts requests that never cross it, and no worker is ever added",
        (),
        CONFIG_FILE,
    ),
    Mutant(
        "an aim of a role that does not grow is ignored",
        "deploy/ray/config_text.py check_scaling",
        "is_given and __all",
        "False",
        "the user waits for workers that never come",
        (),
        CONFIG_TEXT,
    ),
    Mutant(
        "a plan gives room to what load may bring before it has placed all that starts",
        "deploy/ray/placement.py place",
        "(False, True)",
        "(True, False)",
        "it says that there is no room for workers that would start",
        (),
        PLACEMENT,
    ),
)
