import io
import logging
import re
from collections.abc import Iterator

import pytest

from runtime.log import MAX_VALUE_CHARS, Refusals, get_log, start_log


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    start_log("decode-0", "info", stream)
    yield stream
    logging.captureWarnings(False)
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


def test_a_line_has_time_level_process_event_and_fields(lines: io.StringIO) -> None:
    get_log("test").info("registered", kv_pages=512, host="127.0.0.1", share=1 / 3)
    pattern = (
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info decode-0 registered kv_pages=512 host=127.0.0.1 share=0.333333\n"
    )
    assert re.fullmatch(pattern, lines.getvalue())


def test_an_event_is_always_one_line(lines: io.StringIO) -> None:
    get_log("test").warning("odd", reason="two words\nand a line", mark='say "hi"', empty="", equals="a=b")
    assert lines.getvalue().count("\n") == 1
    assert r'reason="two words\nand a line" mark="say \"hi\"" empty="" equals="a=b"' in lines.getvalue()


def test_prompts_and_secrets_are_withheld(lines: io.StringIO) -> None:
    get_log("test").error("failed", prompt="my diary", api_key="sk-1", text="once", request_id="r1")
    assert "prompt=<withheld> api_key=<withheld> text=<withheld> request_id=r1" in lines.getvalue()
    assert "diary" not in lines.getvalue()


def test_long_values_are_cut(lines: io.StringIO) -> None:
    get_log("test").info("long", reason="x" * 5000)
    assert len(lines.getvalue()) < MAX_VALUE_CHARS + 100


def test_levels_below_are_not_written(lines: io.StringIO) -> None:
    get_log("test").debug("noise")
    assert lines.getvalue() == ""


def test_an_exception_is_one_line_with_its_traceback(lines: io.StringIO) -> None:
    try:
        raise KeyError("gone\x1b[31m\nrequest failed")
    except KeyError:
        get_log("test").exception("broke", request_id="r1")
    line = lines.getvalue()
    assert line.count("\n") == 1 and "\x1b" not in line
    start = ' error decode-0 broke request_id=r1 traceback="Traceback (most recent call last):\\n'
    assert start in line and "KeyError: 'gone\\\\x1b[31m" in line


@pytest.mark.parametrize("value", ["a\x1b[2Jb", "a\u202eb", "a\x00b", "a\rb", "a\u2028b", "a\x9bb"])
def test_control_characters_are_escaped(lines: io.StringIO, value: str) -> None:
    get_log("test").info("odd", why=value)
    assert value not in lines.getvalue() and 'why="a\\' in lines.getvalue()


def test_a_library_speaks_in_our_format(lines: io.StringIO) -> None:
    logging.getLogger("somelib").warning("cache of %d is full", 3)
    assert ' warning decode-0 somelib says="cache of 3 is full"' in lines.getvalue()


def test_each_kind_is_counted_and_logged_at_powers_of_ten(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(get_log("test"), "frame refused")
    with caplog.at_level(logging.WARNING):
        for index in range(1234):
            refusals.note("size", at=index)
        refusals.note("checksum")
    assert refusals.counts == {"size": 1234, "checksum": 1}
    assert refusals.total == 1235
    fields = [record.__dict__["baton_fields"] for record in caplog.records]
    assert [(each["kind"], each["count"]) for each in fields] == [
        *(("size", 10**power) for power in range(4)),
        ("checksum", 1),
    ]
    assert [each.get("at") for each in fields] == [0, 9, 99, 999, None]
    assert {record.getMessage() for record in caplog.records} == {"frame refused"}
