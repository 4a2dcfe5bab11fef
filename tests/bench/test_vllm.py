"""The peer is a script here: it serves /health, has a child, and may refuse to end."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from bench import vllm as vllm_module
from bench.vllm import peer_executable, session_members, started, vllm_command
from loadtest.http_exchange import Server
from loadtest.ports import held_port
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock
from tests.processes import has_ended

CLOCK = MonotonicClock()
SERVES = """
import http.server, os, signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import signal; print('x'); signal.pause()"], process_group=0)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[3], "w").close(), os._exit(0)))
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


@pytest.mark.parametrize("how", ["willing", "stubborn"])
async def test_it_serves_and_leaves_nothing(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_module, "STOP_S", 0.2 if how == "stubborn" else 60.0)
    with held_port() as port:
        command = [sys.executable, "-c", SERVES, str(port), how, str(tmp_path / "asked")]
        async with started(CLOCK, command, Server("127.0.0.1", port), os.environ) as peer:
            own = peer.processes()
            assert len(own) == 2, "the server and its child, which has a group of its own"
            [session] = {os.getsid(process.pid) for process in own}
            assert session in {process.pid for process in own}, "the server leads it"
    assert session_members(session) == []
    assert (tmp_path / "asked").exists() == (how == "willing"), "it was asked before it was killed"
    assert all(map(has_ended, own))


async def test_one_that_ends_at_the_start_is_told_in_its_own_words() -> None:
    command = [sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"]
    with pytest.raises(ConfigError, match=r"the peer ended with 3:\nno such model"):
        async with started(CLOCK, command, Server("127.0.0.1", 9), os.environ):
            raise AssertionError("it never served")


async def test_one_that_never_serves_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_module, "START_S", 0.1)
    others = set(psutil.Process().children())
    with pytest.raises(ConfigError, match=r"was not healthy within 0.1 s"):
        async with started(CLOCK, ["sleep", "60"], Server("127.0.0.1", 9), os.environ):
            raise AssertionError("it never served")
    assert all(map(has_ended, set(psutil.Process().children()) - others))


def test_the_variable_names_an_executable(tmp_path: Path) -> None:
    assert peer_executable({}) is None
    assert peer_executable({"BATON_PEER_VLLM": sys.executable}) == sys.executable
    with pytest.raises(ConfigError, match="BATON_PEER_VLLM"):
        peer_executable({"BATON_PEER_VLLM": str(tmp_path / "absent")})


def test_further_flags_follow_those_that_every_load_needs() -> None:
    plain = vllm_command("vllm", Path("folder"), 8701)
    assert plain[:3] == ("vllm", "serve", "folder") and "8701" in plain
    assert vllm_command("vllm", Path("folder"), 8701, ("--block-size", "32")) == (*plain, "--block-size", "32")
