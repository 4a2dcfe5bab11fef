"""Memory between processes: what is left of it, and of a seat, when one of them is killed."""

import mmap
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from runtime.shared_memory import SharedMemory, host_identity, is_ending, is_taken, open_shared, take_seat
from tests.processes import python_path

PROJECT = Path(__file__).resolve().parents[2]
SIZE = 1 << 20
OWNER = f"""
import os, sys
from runtime.shared_memory import SharedMemory
memory = SharedMemory({SIZE})
memory.mapping[:5] = b"hello"
print(os.getpid(), memory.fd, flush=True)
sys.stdin.read()
"""
WRITER = f"""
import mmap, sys
from runtime.shared_memory import open_shared, take_seat
fd = open_shared(int(sys.argv[1]), int(sys.argv[2]), {SIZE})
take_seat(fd, 7)
mmap.mmap(fd, {SIZE})[:5] = b"baton"
print("seated", flush=True)
sys.stdin.read()
"""


@contextmanager
def python(program: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """A process that waits until it is killed; its first line has been said."""
    argv = [sys.executable, "-c", program, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": python_path(PROJECT)}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: "subprocess.Popen[str]") -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def holders(file: os.stat_result) -> list[int]:
    """Processes that map the file or have it open. Another file system may have a file of that number, too."""
    return [each.pid for each in psutil.process_iter() if holds(each.pid, file)]


def holds(pid: int, file: os.stat_result) -> bool:
    """Processes end, and descriptors are closed, while we look."""
    with suppress(OSError):
        if re.search(rf" {file.st_ino} +/memfd:baton-kv", Path(f"/proc/{pid}/maps").read_text()):
            return True
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(file, os.stat(f"/proc/{pid}/fd/{fd}")):
                    return True
    return False


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_its_seat_and_what_it_wrote() -> None:
    memory = SharedMemory(SIZE)
    with python(WRITER, os.getpid(), memory.fd) as writer:
        assert line_of(writer) == ["seated"]
        assert is_taken(memory.fd, 7) and not is_taken(memory.fd, 8)
        writer.send_signal(signal.SIGSTOP)
        assert is_taken(memory.fd, 7)  # silence proves nothing
        writer.kill()
        writer.wait(30)
        assert not is_taken(memory.fd, 7)
    assert memory.mapping[:5] == b"baton"


@pytest.mark.slow
def test_memory_is_gone_with_the_last_process_that_has_it() -> None:
    with python(OWNER) as owner:
        pid, number = map(int, line_of(owner))
        fd = open_shared(pid, number, SIZE)
        file = os.fstat(fd)
        owner.kill()
        owner.wait(30)
        assert holders(file) == [os.getpid()]
        assert os.pread(fd, 5, 0) == b"hello"  # ours is whole, and harms nobody
        os.close(fd)
        assert holders(file) == []


def test_descriptors_are_checked_before_they_are_believed() -> None:
    memory = SharedMemory(SIZE)
    fd = open_shared(os.getpid(), memory.fd, SIZE)
    assert os.fstat(fd).st_ino == os.fstat(memory.fd).st_ino
    os.close(fd)
    with pytest.raises(OSError, match="it has 1048576 bytes, expected 4096 that cannot shrink"):
        open_shared(os.getpid(), memory.fd, 4096)
    unsealed = os.memfd_create("baton-kv")
    os.ftruncate(unsealed, SIZE)
    with pytest.raises(OSError, match="expected 1048576 that cannot shrink"):
        open_shared(os.getpid(), unsealed, SIZE)
    os.close(unsealed)
    with open("/dev/zero") as other, pytest.raises(OSError, match="is not KV memory of Baton"):
        open_shared(os.getpid(), other.fileno(), SIZE)
    with pytest.raises(OSError, match=r"Operation not permitted|Invalid argument"):
        os.ftruncate(memory.fd, 4096)


def test_a_seat_has_one_holder_until_its_descriptor_is_closed() -> None:
    memory = SharedMemory(SIZE)
    one, two = (open_shared(os.getpid(), memory.fd, SIZE) for _ in range(2))
    take_seat(one, 3)
    with pytest.raises(BlockingIOError):
        take_seat(two, 3)
    take_seat(two, 4)
    assert is_taken(memory.fd, 3) and is_taken(memory.fd, 4)
    os.close(one)
    assert not is_taken(memory.fd, 3) and is_taken(memory.fd, 4)
    mapping = mmap.mmap(two, SIZE)
    os.close(two)
    assert is_taken(memory.fd, 4), "who has it mapped may still write"
    mapping.close()
    assert not is_taken(memory.fd, 4)


def test_processes_of_one_host_name_it_alike() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "from runtime.shared_memory import host_identity; print(host_identity())"],
        env={**os.environ, "PYTHONPATH": python_path(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == host_identity()


def test_a_seat_is_new_only_once_and_each_memory_has_seats_of_its_own() -> None:
    memory, other = SharedMemory(SIZE), SharedMemory(SIZE)
    assert [memory.new_seat() for _ in range(3)] == [1, 2, 3] and other.new_seat() == 1


def thread(proc: Path, tid: int, state: str, flags: int) -> None:
    folder = proc / "7" / "task" / str(tid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{tid} (a) b) {state} 1 7 7 0 -1 {flags} 10 0 0 0\n")


@pytest.mark.parametrize(
    "threads, expected",
    [
        ([("S", 0x400000)], False),
        ([("R", 0x400004)], True),
        ([("D", 0x4), ("S", 0)], True),
        ([("Z", 0x4)], False),
        ([("X", 0x4)], False),
        ([("Z", 0x4), ("R", 0x4)], True),  # the first thread is over, another may still close what they shared
    ],
)
def test_a_thread_that_is_exiting_may_still_hold_something(
    tmp_path: Path, threads: list[tuple[str, int]], expected: bool
) -> None:
    for tid, (state, flags) in enumerate(threads, 7):
        thread(tmp_path, tid, state, flags)
    assert is_ending(7, tmp_path) == expected


def test_real_processes() -> None:
    assert not is_ending(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not is_ending(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert (Path("/proc") / str(child.pid)).exists() and not is_ending(child.pid)  # a zombie
    child.communicate()
    assert not is_ending(child.pid)
