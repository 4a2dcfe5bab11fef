"""Some 500 bad requests to a real server, each followed by one whose answer is known; then nothing is held or left."""

import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.e2e.baton_process import PATIENCE_S, BatonProcess
from tests.gateway.bad_input import bodies, conversations, fields, wire
from tests.gateway.bad_input.case import ANY, Case

pytestmark = pytest.mark.slow
FLAGS = "--port 0 --max-total-tokens 8192 --dtype float32"
HASTY = f"{FLAGS} --header-timeout 2 --body-timeout 10"
CASES = [*wire.all_cases(), *bodies.all_cases(), *conversations.all_cases(), *fields.all_cases()]
KNOWN: dict[str, Any] = {"prompt": [70, 300, 22], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
LARGE = 500_000  # bytes of a request
MAX_GROWTH = 48 * 2**20  # bytes of one process, after the large ones have come once


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatonProcess]:
    """The bundled model on a pair. A busy machine's large requests come in time."""
    log: Path = tmp_path_factory.mktemp("bad_input") / "log"
    with BatonProcess("serve", *FLAGS.split(), log=log) as baton:
        yield baton


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[BatonProcess]:
    """The same with short deadlines."""
    with BatonProcess("serve", *HASTY.split(), log=tmp_path / "log") as baton:
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


def status_and_body(answer: bytes) -> tuple[int, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        return status_and_body(body)
    assert head.startswith(b"HTTP/1.1 ") and b"\r\nx-request-id: " in head, answer[:200]
    return int(head.split()[1]), body


def check(case: Case, answer: bytes) -> None:
    """The status, and for an error its shape and its words."""
    status, body = status_and_body(answer)
    assert status == case.status, (case.name, answer[:600])
    if status < 400:
        return
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}, case.name
    assert len(error["message"]) < 700 and error["type"] and error["code"], case.name
    assert all(word in error["message"] for word in case.words), (case.name, error)
    assert case.param in (ANY, error["param"]), (case.name, error)


def test_there_are_enough() -> None:
    assert len(CASES) >= 300 and len({(case.parts, case.status) for case in CASES}) >= 0.98 * len(CASES)
    assert {case.status for case in CASES} >= {200, 400, 404, 405, 413, 415, 431}


def test_bad_requests(server: BatonProcess) -> None:
    expected = server.tokens(**KNOWN)
    assert len(expected) == 4
    large = [case for case in CASES if sum(map(len, case.parts)) > LARGE]
    small = [case for case in CASES if case not in large]
    for case in large:
        check(case, exchange(server.url, case.parts))
        assert server.tokens(**KNOWN) == expected, case.name
    assert server.wait_for_rest()
    before = {process: process.memory_info().rss for process in server.children()}
    num_files = {process: process.num_fds() for process in server.children()}
    for case in [*small, *large]:
        check(case, exchange(server.url, case.parts))
        assert server.tokens(**KNOWN) == expected, case.name
    assert server.wait_for_rest()
    assert server.wait_until(lambda: all(each.num_fds() <= number for each, number in num_files.items()))
    grown = {process.pid: process.memory_info().rss - rss for process, rss in before.items()}
    assert max(grown.values()) < MAX_GROWTH, grown
    assert server.log_text().count("\n") < 50 and "Traceback" not in server.log_text(), server.log_text()[-2000:]


def test_a_huge_method(server: BatonProcess) -> None:
    """It is refused for its first letter, or for its length if enough of it arrives at once."""
    status, _ = status_and_body(exchange(server.url, (b"x" * 1_000_000,)))
    assert status in (400, 431)
    assert len(server.tokens(**KNOWN)) == 4


def trickle(url: str, head: bytes, drop: bytes, answers: list[bytes]) -> None:
    """Sends a drop now and then until the server has had enough."""
    where = urlsplit(url)
    with closing(socket.create_connection((where.hostname, where.port), timeout=PATIENCE_S)) as connection:
        connection.sendall(head)
        answer, has_more = b"", True
        while has_more:
            if not select.select([connection], [], [], 0.05)[0]:
                with suppress(ConnectionError):  # it has had enough; what it said is still to be read
                    connection.sendall(drop)
                continue
            try:
                received = connection.recv(65536)
            except ConnectionResetError:
                received = b""
            answer += received
            has_more = bool(received)
        answers.append(answer)


SLOW = {
    "headers": (b"GET /v1/models HTTP/1.1\r\n", b"a: b\r\n", 408, "headers did not arrive within 2 s"),
    "chunks": (wire.CHUNKED, b"1\r\n \r\n", 408, "body did not arrive within 10 s"),
    "length": (wire.POST + b"content-length: 1000\r\n\r\n", b" ", 408, "body did not arrive within 10 s"),
    "unread": (wire.CHUNKED.replace(b"/v1/completions", b"/nowhere"), b"1\r\n \r\n", 404, "Not Found"),
    "big": (wire.CHUNKED, wire.chunk(b" " * 2**22), 413, "at most 8388608 bytes"),
}


@pytest.mark.broad
def test_slow_and_endless_clients_are_cut_while_a_stream_goes_on(hasty: BatonProcess) -> None:
    wanted: dict[str, Any] = {**KNOWN, "max_tokens": 300, "return_token_ids": True}
    expected = hasty.complete(**wanted)["choices"][0]["token_ids"]
    files = {process: process.num_fds() for process in hasty.children()}
    answers: dict[str, list[bytes]] = {name: [] for name in SLOW}
    threads = [
        threading.Thread(target=trickle, args=(hasty.url, head, drop, answers[name]))
        for name, (head, drop, _, _) in SLOW.items()
    ]
    for thread in threads:
        thread.start()
    rounds = 0
    while rounds == 0 or any(thread.is_alive() for thread in threads):
        chunks = list(hasty.stream(**wanted))
        found = [token for chunk in chunks[:-1] for token in chunk["choices"][0]["token_ids"]]
        assert found == expected and chunks[-1] == {"done": True}
        rounds += 1
    for thread in threads:
        thread.join()
    for name, (_, _, status, words) in SLOW.items():
        [answer] = answers[name]
        found_status, body = status_and_body(answer)
        assert found_status == status and words in json.loads(body)["error"]["message"], (name, answer[:500])
    assert hasty.wait_for_rest()
    assert hasty.wait_until(lambda: all(each.num_fds() <= number for each, number in files.items()))
    assert psutil.pid_exists(hasty.process.pid)
