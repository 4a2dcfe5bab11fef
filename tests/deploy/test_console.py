from datetime import UTC, datetime

import pytest

from deploy.console import Console, LiveConsole, describe_loading, describe_ready, log_level_of, with_name


def test_our_log_lines_carry_their_name_already() -> None:
    line = "2026-01-31T12:00:00.000Z info decode-0 registered kv_pages=5"
    assert with_name("decode-0", line) == line
    assert with_name("decode-1", line) == f"decode-1 | {line}"
    assert (
        with_name("decode-0", "Traceback (most recent call last):") == "decode-0 | Traceback (most recent call last):"
    )


def test_loading_names_what() -> None:
    assert describe_loading({"what": "weights", "done": 1, "total": 4}) == "loading weights"
    assert describe_loading({"what": "joining the gateway"}) == "joining the gateway"
    assert describe_loading({}) == "loading"


def test_ready_shows_what_matters() -> None:
    assert describe_ready({"http": "http://h:1", "control": "tcp://h:2"}) == "ready, http://h:1"
    assert describe_ready({"kv_pages": 5}) == "ready, 5 pages of KV"
    assert describe_ready({}) == "ready"


def test_plain_lines_for_files_and_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(with_logs=False)
    console.starting("decode-0")
    console.loading("decode-0", {"what": "weights", "done": 0, "total": 2})
    console.loading("decode-0", {"what": "weights", "done": 1, "total": 2})
    console.ready("decode-0", {"kv_pages": 5})
    console.trouble("it broke")
    console.serving(["Ready: x", "curl y"])
    shown = capsys.readouterr()
    assert shown.out == "Ready: x\ncurl y\n"
    assert shown.err.splitlines() == [
        "baton: decode-0: starting",
        "baton: decode-0: loading weights",
        "baton: decode-0: ready, 5 pages of KV",
        "baton: error: it broke",
    ]


@pytest.mark.parametrize("console", [Console(with_logs=True), LiveConsole()], ids=["plain", "live"])
def test_while_serving_what_baton_says_is_a_log_line_with_its_time(
    console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    console.serving(["Ready: x"])
    before = datetime.now(UTC).replace(microsecond=0)
    console.trouble("it broke")
    console.note("it serves again")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["error baton it broke", "info baton it serves again"]
    assert [log_level_of(line) for line in lines] == ["error", "info"]
    assert all(before <= datetime.fromisoformat(line.partition(" ")[0]) <= datetime.now(UTC) for line in lines)


def test_what_the_logs_tell_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(with_logs=True)
    console.loading("decode-0", {"what": "weights"})
    console.loading("decode-0", {"what": "KV memory"})
    console.loading("decode-0", {"what": "joining the gateway"})
    console.ready("decode-0", {"kv_pages": 5})
    assert capsys.readouterr().err == "baton: decode-0: loading weights\n"


def test_levels_of_lines() -> None:
    assert log_level_of("2026-01-31T12:00:00.000Z warning decode-0 slow") == "warning"
    assert log_level_of("RuntimeError: broke") == ""
