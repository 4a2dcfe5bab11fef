"""Which test files may notice a mutant of a file."""

from tests.mutants.candidates import Candidates

TEXTS = {
    "room/pool.py": "",
    "room/__main__.py": "",
    "tests/room/test_pool.py": "import os\n",
    "tests/room/test_pool_ends.py": "",
    "tests/room/test_pools.py": "",
    "tests/room/test_command.py": "",
    "tests/room/within/test_pool.py": "",
    "tests/room/driving.py": "from room.pool import Pool\n",
    "tests/other/test_user.py": "from room.pool import Pool\n",
    "tests/other/test_module.py": "from room import pool\n",
    "tests/other/test_plain.py": "def f():\n    import room.pool\n",
    "tests/other/test_neighbour.py": "from room.pools import Pool\nfrom room import pools\n",
    "tests/helper.py": "from room.pool import Pool\n",
    "tests/helper_of_helper.py": "from tests.helper import f\n",
    "tests/other/test_by_helper.py": "from tests.helper import f\n",
    "tests/other/test_by_two_helpers.py": "from tests.helper_of_helper import f\n",
    "tests/bench/test_user.py": "from room.pool import Pool\n",
}
ROOM = {path for path in TEXTS if path.startswith("tests/room/") and "test_" in path}


def test_they_are_those_of_the_room_and_those_that_import_the_file() -> None:
    users = {f"tests/other/test_{name}.py" for name in ("user", "module", "plain", "by_helper")}
    assert Candidates(TEXTS).of("room/pool.py") == ROOM | users
    assert Candidates(TEXTS).of("room/__main__.py") == ROOM


def test_those_of_its_own_name_come_first() -> None:
    candidates = Candidates(TEXTS)
    assert candidates.mirror("room/pool.py") == ["tests/room/test_pool.py", "tests/room/test_pool_ends.py"]
    assert candidates.mirror("room/__main__.py") == ["tests/room/test_command.py"]
