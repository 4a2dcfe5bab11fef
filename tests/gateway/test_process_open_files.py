import json
import subprocess
import sys

import pytest

from gateway.process import SPARE

SCRIPT = """
import json, resource, sys
from gateway.process import allow_connections
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(json.dumps([allow_connections(wanted), resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "expected"),
    [
        (300, 900, 500, [None, [500 + SPARE, 900]]),
        (800, 900, 500, [None, [800, 900]]),
        (300, 700, 500, [700, [700, 700]]),
    ],
    ids=["raised", "enough", "short"],
)
def test_a_process_may_open_what_its_clients_need(soft: int, hard: int, wanted: int, expected: list[object]) -> None:
    command = [sys.executable, "-c", SCRIPT, str(soft), str(hard), str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == expected
