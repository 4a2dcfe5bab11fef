"""The tables of paths and fields in docs/http.md are those of the routes and the schema."""

import re
from pathlib import Path

from gateway.app.app import build_app
from gateway.dialects.openai.fields import ChatRequest, CompletionRequest
from tests.gateway.conftest import Setting

PAGE = (Path(__file__).parents[3] / "docs/http.md").read_text()
SECTION = PAGE.partition("## Paths and fields\n")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in SECTION.splitlines() if line[:1] == "|"]


async def test_every_path_has_a_row(setting: Setting) -> None:
    routes = build_app(setting.gateway.service).routes
    served = {f"{method} {route.path}" for route in routes for method in route.methods}  # type: ignore[attr-defined]
    told = {path for row in ROWS for path in re.findall(r"`((?:GET|POST|PUT) /[^`]*)`", row[0])}
    assert told == {path.replace("{name:path}", "{name}") for path in served}


def test_every_field_has_a_row_of_its_routes() -> None:
    of = {"both": set[str](), "completions": set[str](), "chat": set[str]()}
    for row in ROWS:
        if row[1:2] and row[1] in of:
            of[row[1]] |= set(re.findall(r"`(\w+)`", row[0]))
    assert of["both"] | of["completions"] == CompletionRequest.model_fields.keys()
    assert of["both"] | of["chat"] == ChatRequest.model_fields.keys()
    assert not of["both"] & (of["completions"] | of["chat"])
