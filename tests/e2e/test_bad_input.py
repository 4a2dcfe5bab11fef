"""Some 500 bad requests to a real server, each followed by one whose answer is known; then nothing is held or left."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.baton_process import PATIENCE_S, BatonProcess
from tests.gateway.golden.asks import bad_cases
from tests.gateway.golden.exchange import kept, read

pytestmark = pytest.mark.slow
FLAGS = "--port 0 --max-total-tokens 8192 --dtype float32"
CASES, KEPT = bad_cases(), read()
KNOWN: dict[str, Any] = {"prompt": [70, 300, 22], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
LARGE = 500_000  # bytes of a request
MAX_GROWTH = 48 * 2**20  # bytes of one process, after the large ones have come once


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatonProcess]:
    """The bundled model on a pair. A busy machine's large requests come in time."""
    log: Path = tmp_path_factory.mktemp("bad_input") / "log"
    with BatonProcess("serve", *FLAGS.split(), log=log) as baton:
        yield baton


def exchange(url: str, parts: tuple[bytes, ...]) -> bytes:
    """All that the server answers until it closes."""
    where = urlsplit(url)
    answer = b""
    with closing(socket.create_connection((where.hostname, where.port), timeout=PATIENCE_S)) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except ConnectionError:
            pass  # it has heard enough; what it said is still to be read
        try:
            while received := connection.recv(65536):
                answer += received
        except ConnectionResetError:
            pass
    return answer


def check(name: str, answer: bytes) -> None:
    """A refusal is the one that is kept; what is served has other tokens."""
    found, expected = kept(answer), KEPT[name]
    assert b"\r\nx-request-id: " in answer and found["status"] == expected["status"], (name, answer[:600])
    if " 200 " not in found["status"]:
        assert found == expected, name
        assert len(found["body"]) < 1000, name


def test_bad_requests(server: BatonProcess) -> None:
    expected = server.tokens(**KNOWN)
    assert len(expected) == 4
    large = {name: case for name, case in CASES.items() if sum(map(len, case.parts)) > LARGE}
    for name, case in large.items():
        check(name, exchange(server.url, case.parts))
        assert server.tokens(**KNOWN) == expected, name
    assert server.wait_for_rest()
    before = {process: process.memory_info().rss for process in server.children()}
    num_files = {process: process.num_fds() for process in server.children()}
    for name, case in (*(each for each in CASES.items() if each[0] not in large), *large.items()):
        check(name, exchange(server.url, case.parts))
        assert server.tokens(**KNOWN) == expected, name
    assert server.wait_for_rest()
    assert server.wait_until(lambda: all(each.num_fds() <= number for each, number in num_files.items()))
    grown = {process.pid: process.memory_info().rss - rss for process, rss in before.items()}
    assert max(grown.values()) < MAX_GROWTH, grown
    assert server.log_text().count("\n") < 50 and "Traceback" not in server.log_text(), server.log_text()[-2000:]


def test_a_huge_method(server: BatonProcess) -> None:
    """It is refused for its first letter, or for its length if enough of it arrives at once."""
    assert kept(exchange(server.url, (b"x" * 1_000_000,)))["status"].split()[1] in ("400", "431")
    assert len(server.tokens(**KNOWN)) == 4
