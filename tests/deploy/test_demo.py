import json
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import CommandLine, find_config
from deploy.demo import (
    Answer,
    DemoFailed,
    Moment,
    printable,
    prompt_fields,
    proposed_part,
    show,
    spelled,
    stream_answer,
)
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
LATE = [{"choices": [{"text": " a fox a ran", "token_ids": [7, 12, 7, 9]}]}]  # prefill's token came with decode's
ERROR = {"error": {"message": "worker lost", "type": "unavailable"}}
RUNS = [
    {"choices": [{"text": " a", "token_ids": [7]}]},
    {"choices": [{"text": " fox a ran", "token_ids": [12, 7, 9]}]},
]
CUT: list[dict[str, Any]] = [
    {"choices": [{"text": " a", "token_ids": [7]}]},
    {"choices": [{"text": " fox a", "token_ids": [12, 7], "finish_reason": "length"}]},
    {"choices": [], "timeline": [{"name": "run cut", "at_ms": 3.5, "worker": "decode-0"}]},
]


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
        chunks = {"breaks": [CHUNKS[0], ERROR], "ids": IDS, "runs": RUNS, "late": LATE, "cut": CUT}.get(
            asked["model"], CHUNKS
        )
        assert asked.get("return_token_ids", False) == any("token_ids" in str(chunk) for chunk in chunks)
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
    stream_answer(url, {"model": "ids", "prompt": [1, 2], "return_token_ids": True}, VirtualClock())
    assert capsys.readouterr().out == "[1, 2] 7 12 9"


@pytest.fixture
def coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that shows colours."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")


def words(ids: Sequence[int]) -> str:
    return "".join({7: " a", 12: " fox", 9: " ran"}[token] for token in ids)


@pytest.mark.usefixtures("coloured")
@pytest.mark.parametrize(
    ("model", "decode", "in_colour", "num_proposed", "is_cut"),
    [
        ("runs", words, "Once\x1b[0m a\x1b[1;32m fox a\x1b[0m ran", 2, False),
        ("cut", words, "Once\x1b[0m a\x1b[1;32m fox a\x1b[0m", 2, True),  # all of a run that was cut was proposed
        ("late", words, "Once\x1b[0m a fox a ran", 2, False),  # prefill's token was not proposed
        ("ids", spelled, "[1]\x1b[0m 7\x1b[1;32m 12\x1b[0m 9", 1, False),
    ],
)
def test_proposed_tokens_are_in_colour_and_counted(
    url: str,
    model: str,
    decode: Any,
    in_colour: str,
    num_proposed: int,
    is_cut: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = {"prompt": [1], "return_token_ids": True} if model == "ids" else {"prompt": "Once"}
    answer = stream_answer(url, {"model": model, **body}, VirtualClock(), decode=decode)
    assert capsys.readouterr().out == f"\x1b[2m{in_colour}"
    assert (answer.num_proposed, answer.is_cut) == (num_proposed, is_cut)


@pytest.mark.usefixtures("coloured")
def test_no_color_is_respected(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream_answer(url, {"model": "runs", "prompt": "Once"}, VirtualClock(), decode=words)
    shown = capsys.readouterr().out
    assert re.sub(r"\x1b\[[0-9]*m", "", shown) == "Once a fox a ran" and "32m" not in shown


@pytest.mark.parametrize(
    ("num_proposed", "told"),
    [(None, ""), (0, "0 tokens were proposed"), (3, "3 tokens were proposed by the draft: 8 ")],
)
def test_what_a_draft_has_proposed_is_told(
    num_proposed: int | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show(Answer(8, (), 1.0, num_proposed))
    shown = capsys.readouterr().out
    assert told in shown and ("proposed" in shown) is (num_proposed is not None)


def test_a_launch_whose_run_was_cut_is_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    show(Answer(8, (), 1.0, 5, is_cut=True))
    assert "5 tokens were proposed by the draft: 8 tokens in 4 steps" in capsys.readouterr().out


def test_where_ids_and_text_do_not_fit_the_whole_step_is_in_colour() -> None:
    assert proposed_part("ab", [1, 2], lambda ids: "a") == "a"
    assert proposed_part(" ab c", [1, 2], lambda ids: "ab") == " ab", "SentencePiece leaves out the first space"
    assert proposed_part("ab", [1, 2], lambda ids: "\ufffd") == "ab"
    assert proposed_part("ab", [1], lambda ids: "x") == ""


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
