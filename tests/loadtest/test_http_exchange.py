"""Connections that stay open for the next request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadtest.http_exchange import IDLE_S, Broken, Connections, Server, get, refusal
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock
from tests.doubles.clock import VirtualClock
from tests.loadtest.openai_stand_in import StandIn, listening, standing_in, tokens

CLOCK = MonotonicClock()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi\n"


class Keeping:
    """A server that keeps its connections; counts them, and answers each request with `answer`."""

    def __init__(self, answer: bytes = ANSWER) -> None:
        self.answer, self.num_connections, self.requests = answer, 0, list[bytes]()
        self.writers: list[asyncio.StreamWriter] = []
        self.clock = VirtualClock()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.writers.append(writer)
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(self.answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def asked(connections: Connections, *, leaves: bool = False) -> int:
    return await connections.exchange("GET", "/", b"", lambda _now, _line: not leaves, 10.0)


@asynccontextmanager
async def served_by(keeping: Keeping) -> AsyncIterator[Connections]:
    async with listening(keeping.serve) as server:
        connections = Connections(server, keeping.clock)
        yield connections
        connections.close()


async def test_one_connection_serves_one_request_after_another() -> None:
    keeping = Keeping()
    async with served_by(keeping) as connections:
        assert [await asked(connections) for _ in range(3)] == [200] * 3
        assert (keeping.num_connections, len(keeping.requests)) == (1, 3)
        assert b"Connection:" not in keeping.requests[0]

        keeping.clock.advance(IDLE_S)
        await asked(connections)
        assert keeping.num_connections == 2, "one that was idle for long is not used again"

        await asyncio.gather(asked(connections), asked(connections))
        assert keeping.num_connections == 3, "two requests at a time have two"


async def test_a_connection_that_a_client_left_or_the_server_closes_is_not_used_again() -> None:
    keeping = Keeping()
    async with served_by(keeping) as connections:
        await asked(connections, leaves=True)
        await asked(connections)
        assert keeping.num_connections == 2

        keeping.answer = ANSWER.replace(b"\r\nContent", b"\r\nConnection: close\r\nContent")
        await asked(connections)
        keeping.answer = ANSWER
        await asked(connections)
        assert keeping.num_connections == 3


async def test_a_kept_connection_that_is_closed_meanwhile_costs_a_new_one_and_no_request() -> None:
    keeping = Keeping()
    async with served_by(keeping) as connections:
        await asked(connections)
        keeping.writers[0].close()  # the client has not noticed when it sends
        assert (await asked(connections), keeping.num_connections) == (200, 2)


async def test_a_late_or_broken_answer_is_no_status() -> None:
    keeping = Keeping(b"")
    async with served_by(keeping) as connections:
        with pytest.raises(Broken, match=r"no end within 0.05 s"):
            await connections.exchange("GET", "/", b"", lambda _now, _line: True, 0.05)
        keeping.answer = b"nonsense\r\n"
        with pytest.raises(Broken, match=r"^not HTTP: ") as broken:
            await asked(connections)
        assert broken.value.kind == "not HTTP"


@pytest.mark.parametrize(
    "status, body, says",
    [
        (401, b'{"error": {"message": "no key"}}', "HTTP 401: no key; --api-key-file FILE names a file with the key"),
        (403, b"forbidden", "HTTP 403: forbidden; --api-key-file FILE names a file with the key"),
        (503, b'{"error": {"message": "no workers"}}', "HTTP 503: no workers"),
        (500, b"[]", "HTTP 500: []"),
    ],
)
def test_what_a_refusal_says(status: int, body: bytes, says: str) -> None:
    assert refusal(status, body) == says


async def test_keys_and_paths() -> None:
    stand_in = StandIn(tokens)
    async with standing_in(stand_in) as server:
        url = f"http://127.0.0.1:{server.port}/prefix/v1/"
        assert Server.at(url, "") == Server("127.0.0.1", server.port, path="/prefix")
        await get(Server.at(url, "secret"), CLOCK, "/v1/models")
        await get(Server.at(url, ""), CLOCK, "/v1/models")
    assert stand_in.heads[0].startswith("GET /prefix/v1/models HTTP/1.1\r\n")
    assert "Authorization: Bearer secret\r\n" in stand_in.heads[0]
    assert "Authorization" not in stand_in.heads[1]


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:y", "http://x?q", "http://x:99999"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        Server.at(url)


def test_without_a_key_that_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst\nsecond\n")
    path.chmod(0o600)
    monkeypatch.setenv("BATON_API_KEY_FILE", str(path))
    assert Server.at("http://127.0.0.1:1").key == "first"
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    assert Server.at("https://api.example").key == "mine"
    assert Server.at("https://api.example") == Server("api.example", 443, True, "", "mine")
