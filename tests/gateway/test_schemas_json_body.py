import json

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from gateway.schemas import MAX_CONTAINERS, MAX_DEPTH, MAX_STRINGS, parse_json
from gateway.service import LONG_BODY_BYTES, check_content
from protocol.errors import BadRequest
from tests.gateway.conftest import Setting


def test_json() -> None:
    assert parse_json('{"a": [1, 2.5, "\\ud83d\\ude00é\\u0000", null, true]}'.encode()) == {
        "a": [1, 2.5, "\U0001f600é\0", None, True]
    }
    assert parse_json(b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)) is not None


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"{} {}", "trailing characters at line 1 column 4"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"a": -Infinity}', "not valid JSON"),
        (b'"\\ud800"', "not valid JSON"),
        (b'"\\udc00\\ud800"', "not valid JSON"),
        (b'"\xff"', "not valid JSON"),
        (b'"\xed\xa0\x80"', "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        ("{}".encode("utf-16"), "not valid JSON"),
        (b"[" * (MAX_DEPTH + 2), "nested deeper than 200 levels"),
        (b'{"a":' * (MAX_DEPTH + 2), "nested deeper than 200 levels"),
        (b"9" * 100_000, "number out of range"),
        (b"[" + b'"",' * MAX_STRINGS + b'""]', "100001 strings, expected at most 100000"),
        (b"[" + b"[]," * MAX_CONTAINERS + b"1]", "100001 opening brackets, expected at most 100000"),
    ],
)
def test_what_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_json(raw)
    assert words in caught.value.message and len(caught.value.message) < 250 and caught.value.param is None


@pytest.mark.parametrize(
    "raw", [b'{"key": 1, "key": 1}', b'[{"x": {"key": 1, "b": 2,\n"key": 3}}]', b'{"key":1,"k\\u0065y":2}']
)
def test_a_key_that_appears_twice_is_named(raw: bytes) -> None:
    with pytest.raises(BadRequest, match=r"key: appears twice in one object, at line \d column \d+") as caught:
        parse_json(raw)
    assert caught.value.param == "key"


def test_a_long_key_is_cut() -> None:
    long = b'"' + b"k" * 10_000 + b'":1'
    with pytest.raises(BadRequest, match="appears twice") as caught:
        parse_json(b"{" + long + b"," + long + b"}")
    assert len(caught.value.message) < 200


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=UTF-8", "application/vnd.x+json"])
def test_what_is_json_by_its_headers(kind: str) -> None:
    check_content(request(content_type=kind, content_encoding="identity"))
    check_content(request())


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"content_encoding": "gzip"}, "content-encoding: got 'gzip'"),
        ({"content_encoding": "br, gzip"}, "content-encoding: got 'br, gzip'"),
        ({"content_type": "text/plain"}, "content-type: got 'text/plain', expected 'application/json'"),
        ({"content_type": "application/x-www-form-urlencoded"}, "form-urlencoded"),
        ({"content_type": "multipart/form-data; boundary=a"}, "multipart"),
        ({"content_type": ""}, "got ''"),
        ({"content_type": "application/json; charset=utf-16"}, "charset 'utf-16'"),
    ],
)
def test_what_is_not(headers: dict[str, str], words: str) -> None:
    with pytest.raises(HTTPException) as caught:
        check_content(request(**headers))
    assert caught.value.status_code == 415 and words in caught.value.detail


async def test_a_byte_order_mark_before_the_json_is_skipped(setting: Setting) -> None:
    await setting.add_pair()
    for user in ("", "y" * LONG_BODY_BYTES):
        body = json.dumps({"prompt": "a", "max_tokens": 1, "user": user}).encode("utf-8-sig")
        assert (await setting.client.post("/v1/completions", content=body)).status_code == 200
    for body in (b"\xef\xbb\xbf\xef\xbb\xbf{}", b"\xef\xbb{}", '{"prompt": "a"}'.encode("utf-16")):
        error = (await setting.client.post("/v1/completions", content=body)).json()["error"]
        assert "the body is not valid JSON" in error["message"]
