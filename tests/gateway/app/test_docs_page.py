import re
from html.parser import HTMLParser
from typing import Any

import pytest

from gateway.app.docs_page import docs_page, kind_of
from gateway.app.openapi_rules import NOT_SUPPORTED
from tests.gateway.conftest import Setting

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Checks that tags are closed in order, and keeps what the page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.open += [] if tag in VOID else [tag]
        for name, value in attrs:
            assert not name.startswith("on") and name != "src"
            if name == "id":
                self.ids.append(str(value))
            if name == "href":
                self.links.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert not reader.open
    return reader


async def test_the_page_needs_nothing_else(setting: Setting) -> None:
    response = await setting.client.get("/docs")
    assert response.status_code == 200 and response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    reader = read(response.text)
    assert not reader.tags & {"script", "link", "img", "iframe", "object"}
    assert {link for link in reader.links if link[0] != "#"} == {"/openapi.json"}
    assert {link[1:] for link in reader.links if link[0] == "#"} <= set(reader.ids)
    assert len(set(reader.ids)) == len(reader.ids)
    assert not re.search(r"(?i)https?://(?!HOST:PORT)|@import|url\(", response.text)


async def test_the_page_has_every_path_and_every_field(setting: Setting) -> None:
    document = (await setting.client.get("/openapi.json")).json()
    text = read((await setting.client.get("/docs")).text).text
    words = set(text.split())
    assert document["paths"].keys() <= words
    for name, schema in document["components"]["schemas"].items():
        assert name in words and schema["properties"].keys() <= words


async def test_the_page_knows_the_limits(setting: Setting) -> None:
    text = read((await setting.client.get("/docs")).text).text
    assert "integer, at least 1, at most 128" in text
    assert '-d \'{"model": "story", "prompt": "Once upon a time", "max_tokens": 8}\'' in text


def test_required_fields_come_first_and_those_that_are_not_supported_stand_apart() -> None:
    fields = {
        "of_others": {"description": NOT_SUPPORTED, "examples": [None]},
        "optional": {"description": "Plain.", "examples": [1]},
        "needed": {"description": "Plain.", "examples": [2]},
    }
    schemas = {
        "S": {"description": "One.", "properties": fields, "required": ["needed"]},
        "T": {"description": "Without any.", "properties": {"optional": fields["optional"]}},
    }
    text = read(docs_page({"info": {"title": "T"}, "paths": {}, "components": {"schemas": schemas}})).text
    in_order = ("needed", "required", "optional", "1 fields that are not supported", "of_others", "Without any.")
    places = [text.index(words) for words in in_order]
    assert places == sorted(places) and text.count("fields that are not supported") == 1


def test_backticks_mark_code() -> None:
    field = {"type": "string", "description": "Needs `a<b`, or not.", "examples": [1]}
    schema = {"description": "Plain.", "properties": {"a": field}}
    page = docs_page({"info": {"title": "T"}, "paths": {}, "components": {"schemas": {"S": schema}}})
    assert "Needs <code>a&lt;b</code>, or not." in page and "<p>Plain.</p>" in page


def test_what_a_name_says_is_no_html() -> None:
    field = {"type": "string", "description": "<b>bold</b>", "examples": ["<script>"]}
    schema = {"description": "<img>", "properties": {"a": field}}
    page = docs_page({"info": {"title": "<i>"}, "paths": {}, "components": {"schemas": {"S": schema}}})
    reader = read(page)
    assert not reader.tags & {"script", "img", "i"} and "<b>bold</b>" in reader.text and '"<script>"' in reader.text


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "boolean"}, "true or false"),
        ({"type": "integer", "minimum": 0, "exclusiveMaximum": 9}, "integer, at least 0, less than 9"),
        ({"type": "integer", "minimum": -(2**63), "exclusiveMaximum": 2**31}, "integer"),
        ({"type": "string", "minLength": 1, "maxLength": 3}, "text, not empty, at most 3 characters"),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, "number"),
        (
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": 2}]},
            "text, or list of (text), at most 2 items",
        ),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "enum": ["a", None]}, '"a"'),
        ({"enum": [None, False]}, "false"),
        ({"enum": [None]}, "null"),
        ({"const": "text", "type": "string"}, '"text"'),
        ({"type": "array", "items": {"$ref": "#/components/schemas/TextPart"}}, "list of (TextPart)"),
        ({"type": "array", "items": {}}, "list"),
        ({}, "any value"),
    ],
)
def test_what_a_schema_allows_in_words(schema: dict[str, Any], words: str) -> None:
    assert kind_of(schema) == words
