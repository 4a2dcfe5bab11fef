import errno
import os
import select
import sys
from pathlib import Path

import psutil
import pytest

from deploy.child_process import MAX_LINE_BYTES, ChildProcess, LineReader, parse_status
from deploy.layout import ProcessSpec
from deploy.sentences import describe_exit
from tests.processes import command_line, num_open_files


def test_lines_arrive_whole() -> None:
    read_fd, write_fd = os.pipe()
    reader = LineReader(read_fd)
    os.write(write_fd, b"one\r\ntw")
    assert reader.read() == ["one"]
    assert reader.read() == []
    os.write(write_fd, b"o\n\xff!")
    os.close(write_fd)
    assert reader.read() == ["two"]
    assert reader.read() == ["\ufffd!"]
    assert reader.fd == -1
    assert reader.read() == []


def test_a_line_without_end_is_cut() -> None:
    read_fd, write_fd = os.pipe()
    reader = LineReader(read_fd)
    os.write(write_fd, b"x" * (MAX_LINE_BYTES - 1))
    assert reader.read() == []
    os.write(write_fd, b"yy")
    assert [len(line) for line in reader.read()] == [MAX_LINE_BYTES + 1]
    os.close(write_fd)
    reader.close()


@pytest.mark.parametrize("line", ["", "{", "[]", "{}", '{"event": 1}', "3"])
def test_what_is_no_status_is_none(line: str) -> None:
    assert parse_status(line) is None


def test_status_events() -> None:
    assert parse_status('{"event": "ready", "kv_pages": 5}') == {"event": "ready", "kv_pages": 5}


def test_exits_in_words() -> None:
    assert describe_exit(1) == "exit status 1"
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-63) == "killed by signal 63"


def test_a_child_finds_the_project_and_says_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "protocol.py").write_text("raise RuntimeError('the wrong protocol')")
    program = (
        "import os, sys, protocol.errors; print(os.environ['MARK'], protocol.__path__[0]);"
        'os.write(int(sys.argv[2]), b\'{"event": "ready"}\\nrubbish\\n\'); sys.exit(3)'
    )
    spec = ProcessSpec("x", (sys.executable, "-P", "-c", program), {"MARK": "here"})
    project = Path(__file__).resolve().parents[2]
    child = ChildProcess(spec, 0.0)
    assert select.select([child.exit_fd], [], [], 60.0)[0]
    assert child.popen.poll() == 3
    assert child.exit_fd not in child.descriptors()
    assert child.log_lines() == [f"here {project / 'protocol'}"]
    assert child.events() == [{"event": "ready"}]
    assert child.last_line == "malformed status: rubbish"
    child.close()
    assert child.descriptors() == ()


def test_a_child_is_pinned_and_its_parent_is_not() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    script = "import os; print(sorted(os.sched_getaffinity(0)))"
    child = ChildProcess(ProcessSpec("x", (sys.executable, "-S", "-c", script), {}, (core,)), 0.0)
    assert os.sched_getaffinity(0) == before
    assert select.select([child.exit_fd], [], [], 60.0)[0]
    assert child.log_lines() == [str([core])]
    child.close()
    with pytest.raises(FileNotFoundError):
        ChildProcess(ProcessSpec("x", ("/none",), {}, (core,)), 0.0)
    assert os.sched_getaffinity(0) == before


def test_what_cannot_be_started_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a program that is not there, nor a process that there is no descriptor to watch with."""
    sleeper = (sys.executable, "-c", "import select; select.select([], [], [])")
    before = num_open_files()
    with pytest.raises(FileNotFoundError):
        ChildProcess(ProcessSpec("x", (str(tmp_path / "none"),), {}), 0.0)

    def full(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", full)
    with pytest.raises(OSError, match="Too many open files"):
        ChildProcess(ProcessSpec("x", sleeper, {}), 0.0)
    assert num_open_files() == before
    assert [child for child in psutil.Process().children() if sleeper[2] in command_line(child)] == []


def test_a_child_is_told_lines_whole_or_not_at_all() -> None:
    program = "import sys, threading; print(sys.stdin.readline(), flush=True); threading.Event().wait()"
    child = ChildProcess(ProcessSpec("listener", (sys.executable, "-c", program), {}, is_told=True), 0.0)
    try:
        assert child.tell(b"hello\n")
        lines: list[str] = []
        while not lines:
            select.select(child.pipes(), [], [])
            lines = child.log_lines()
        assert lines[0] == "hello"
        num_told = 0
        while child.tell(b"x" * 1023 + b"\n"):  # it reads no more
            num_told += 1
        assert 0 < num_told < 4096 and not child.tell(b"y\n" * 512)
        child.kill_group()
        child.popen.wait()
        assert not child.tell(b"gone\n")
    finally:
        child.close()
    assert child.popen.stdin is not None and child.popen.stdin.closed
