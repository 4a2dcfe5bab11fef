import json
import subprocess
import sys

from gateway.process import SPARE

SCRIPT = """
import json, resource
from gateway.process import allow_connections
for soft, hard in ((300, 900), (800, 900), (300, 700)):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(json.dumps([allow_connections(500), resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""


def test_a_process_may_open_what_its_clients_need() -> None:
    """As many as 500 clients need, with a limit that can be raised, that is enough and that is too low."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    raised, enough, short = map(json.loads, done.stdout.splitlines())
    assert (raised, enough, short) == ([None, [500 + SPARE, 900]], [None, [800, 900]], [700, [700, 700]])
