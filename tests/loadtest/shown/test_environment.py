"""What a report says of where it was made."""

import orjson

from loadtest.drive.server import Found, Probed
from loadtest.drive.talk import COMPLETIONS, Asking, TokenHistory
from loadtest.figures.record import Counting
from loadtest.http_exchange import Connections, Server
from loadtest.measure import Endpoint
from loadtest.shown.environment import environment
from runtime.clock import MonotonicClock


def test_versions_machine_and_command_are_told_and_no_key() -> None:
    server, clock = Server("127.0.0.1", 8000, path="/base", key="geheim"), MonotonicClock()
    asking = Asking(Connections(server, clock), COMPLETIONS, "m", TokenHistory)
    endpoint = Endpoint(server, Found("m", 512), Probed(asking, Counting.IDS, False), clock)
    about = environment(endpoint, ["--extra-body", '{"a": 1}'])
    assert about["endpoint"] == "http://127.0.0.1:8000/base/v1/completions"
    assert about["command"] == "baton bench --extra-body '{\"a\": 1}'" and about["context"] == 512
    assert about["machine"]["same_host"] and about["machine"]["cores"] >= 1 and about["versions"]["baton"]
    assert b"geheim" not in orjson.dumps(about)
