"""What stands in for `baton serve` is a script of a few lines."""

import sys
from pathlib import Path

import pytest

from loadtest import deployment
from loadtest.deployment import deployed
from protocol.errors import ConfigError

SERVES = """
import signal, sys, pathlib
try:
    print("info gateway ready http=http://127.0.0.1:1", flush=True)
    print("Ready: story at http://127.0.0.1:2 with 1 prefill + 1 decode workers, in 1.0 s. Try:", flush=True)
    signal.pause()
except KeyboardInterrupt:
    pathlib.Path(sys.argv[1]).write_text("stopped")
"""


async def test_the_url_is_that_of_the_ready_line_and_the_end_is_orderly(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with deployed([str(note)], [sys.executable, "-c", SERVES]) as url:
        assert url == "http://127.0.0.1:2"
    assert note.read_text() == "stopped"


async def test_a_start_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "START_S", 0.05)
    with pytest.raises(ConfigError, match=r"was not ready within 0.05 s"):
        async with deployed([], ["sleep", "60"]):
            raise AssertionError("it never served")


async def test_a_failed_start_is_told_in_its_own_words() -> None:
    with pytest.raises(ConfigError, match=r"did not start:\nbaton: error: no such model"):
        async with deployed([], ["sh", "-c", "echo 'baton: error: no such model'; exit 2"]):
            raise AssertionError("it never served")


async def test_one_that_ignores_ctrl_c_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "STOP_S", 0.05)
    lines = 'trap "" INT; echo "Ready: story at http://127.0.0.1:2 with"; while :; do sleep 0.01; done'
    async with deployed([], ["sh", "-c", lines]) as url:
        assert url == "http://127.0.0.1:2"
