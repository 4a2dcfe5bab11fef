"""Sabotages of groups of ranks: what starts, ends and is started again together."""

from tests.mutants.mutant import Mutant

LAUNCHER = ("tests/deploy/test_launcher_groups.py",)
SUPERVISOR = ("tests/deploy/test_supervisor_groups.py",)
FOLDERS = ("tests/deploy/test_group_folders.py",)
LAYOUT = ("tests/deploy/test_layout_groups.py",)

GROUPS = (
    Mutant(
        "the others of a group live on",
        "Launcher._has_ended",
        "for child in unit.children:\n    ...",
        "for child in ended:\n    ...",
        "they wait in a collective for a rank that has ended",
        (),
        LAUNCHER,
    ),
    Mutant(
        "a group is started again under its old epoch",
        "Supervisor._start",
        "self._launcher.start_again(__specs, life.starts)",
        "self._launcher.start_again(__specs, 1)",
        "a rank takes messages of the start before for those of this one",
        (),
        SUPERVISOR,
    ),
    Mutant(
        "a group serves when one of its ranks does",
        "Supervisor._note_ready",
        "all(...)",
        "any(...)",
        "its user is told so while no rank can compute",
        (),
        SUPERVISOR,
    ),
    Mutant(
        "a rank that says that its group is broken is blamed",
        "_lateness",
        "int(child.failure_code == GroupBroken.code)",
        "0",
        "the log does not name the rank that ended first",
        (),
        LAUNCHER,
    ),
    Mutant(
        "the folder of a launcher that lives is taken for a leftover",
        "deploy/group_folders.py _locked",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        "its ranks cannot meet any more",
        (),
        FOLDERS,
    ),
    Mutant(
        "the path of a group's folder is measured in letters",
        "GroupFolders.make",
        "len(os.fsencode(folder))",
        "len(str(folder))",
        "its ranks cannot bind their sockets",
        (),
        FOLDERS,
    ),
    Mutant(
        "each rank that comes back takes the memory of its whole group",
        "as_large",
        "settings.group_size",
        "1",
        "the last of them finds none",
        (),
        LAYOUT,
    ),
)
