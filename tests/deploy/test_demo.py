import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import CommandLine, find_config
from deploy.demo import Answer, DemoFailed, Moment, printable, prompt_fields, stream_answer
from protocol.errors import ConfigError
from tests.doubles.clock import VirtualClock

CHUNKS: list[dict[str, Any]] = [
    {"choices": [{"index": 0, "text": ", a fox"}]},
    {"choices": [{"index": 0, "text": " ran."}]},
    {
        "choices": [],
        "usage": {"completion_tokens": 5},
        "timeline": [{"name": "done", "at_ms": 3.5, "worker": "decode-0"}],
    },
]
IDS: list[dict[str, Any]] = [
    {"choices": [{"index": 0, "text": "", "token_ids": [7]}]},
    {"choices": [{"index": 0, "text": "", "token_ids": [12, 9]}]},
]
ERROR = {"error": {"message": "worker lost", "type": "unavailable"}}


class Handler(BaseHTTPRequestHandler):
    """Answers by the model's name: a stream, a stream that breaks, or a refusal."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["timeline"] is True
        assert self.headers["Authorization"] == ("Bearer sk-1" if asked["model"] == "locked" else None)
        refused = asked["model"] == "unknown"
        self.send_response(404 if refused else 200)
        self.end_headers()
        if refused:
            self.wfile.write(json.dumps({"error": {"message": "no such model"}}).encode())
            return
        chunks = [CHUNKS[0], ERROR] if asked["model"] == "breaks" else IDS if asked["model"] == "ids" else CHUNKS
        for chunk in chunks:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        if asked["model"] != "breaks":
            self.wfile.write(b"data: [DONE]\n\n")

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Silence."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def ask(url: str, model: str) -> Answer:
    api_key = "sk-1" if model == "locked" else ""
    return stream_answer(url, {"model": model, "prompt": "Once"}, VirtualClock(), api_key)


def test_the_answer_streams_to_the_terminal(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(url, "story")
    assert capsys.readouterr().out == "Once, a fox ran."
    assert answer == Answer(5, (Moment("done", 3.5, "decode-0"),), 0.0)


def test_a_key_is_sent(url: str) -> None:
    assert ask(url, "locked").num_tokens == 5


@pytest.mark.parametrize("model, says", [("unknown", "HTTP 404: no such model"), ("breaks", "worker lost")])
def test_a_failure_is_told_below_the_prompt(
    url: str, model: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DemoFailed, match=says):
        ask(url, model)
    assert capsys.readouterr().out in ("Once\n", "Once, a fox\n")


def test_token_ids_are_shown_where_there_is_no_text(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    ask(url, "ids")
    assert capsys.readouterr().out == "Once 7 12 9"


def test_a_model_without_tokenizer_gets_token_ids_and_no_text(tmp_path: Path) -> None:
    default = find_config(CommandLine("demo", {}), {})
    typed = find_config(CommandLine("demo", {"prompt": "The sea"}), {})
    assert prompt_fields(default, tmp_path) == {"prompt": [1, 2, 3], "return_token_ids": True}
    with pytest.raises(ConfigError, match=r"--prompt: got 'The sea', but folder .* has no tokenizer\.json; without"):
        prompt_fields(typed, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert prompt_fields(typed, tmp_path) == {"prompt": "The sea"}


def test_a_terminal_obeys_no_answer() -> None:
    assert printable("a\x1b[2Jb\n\tä—\r") == "a\ufffd[2Jb\n\tä—\ufffd"


def test_nobody_listens() -> None:
    with socket.socket() as bound:  # and not listening: a connection is refused
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(DemoFailed, match=f"the request to {url} failed"):
            ask(url, "story")
