"""How a suite is run: its environment, its report, and what counts as no result."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tool_clients.outcomes import Case, of_lines
from tests.tool_clients.packages import Packages
from tests.tool_clients.suites import REPORT, Server, Suite

SERVER = Server("http://127.0.0.1:1/v1", "story")
TELL = (
    "import json, os; print(json.dumps({'name': os.environ['TOOL_CLIENTS_MODEL'] + ' at '"
    " + os.environ['TOOL_CLIENTS_URL'], 'outcome': 'passed', 'reason': ''}))"
)


def cases(tmp_path: Path, *command: str) -> Sequence[Case]:
    suite = Suite((), lambda *_: (sys.executable, "-c", *command), of_lines)
    return suite.run(Packages(tmp_path), SERVER)


def test_it_knows_the_server_by_its_environment(tmp_path: Path) -> None:
    assert cases(tmp_path, TELL) == [Case("story at http://127.0.0.1:1/v1", "passed")]


def test_a_report_is_read_in_place_of_what_is_printed_and_an_old_one_is_not(tmp_path: Path) -> None:
    line = json.dumps({"name": "of the report", "outcome": "passed", "reason": ""})
    assert cases(tmp_path, f"open({REPORT!r}, 'w').write({line!r})") == [Case("of the report", "passed")]
    assert cases(tmp_path, TELL)[0].name.startswith("story at")


def test_a_suite_without_a_case_is_an_error_that_shows_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no case, and ended with 3: no module"):
        cases(tmp_path, "print('no module'); raise SystemExit(3)")
