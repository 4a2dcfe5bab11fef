"""docs/http.md says what the options, constants and statuses really are."""

import re
from pathlib import Path

from deploy.options import options_for
from gateway.dialects.openai import conversation_fields
from gateway.dialects.shared import sampling_fields
from gateway.generation import conversations
from gateway.http import protocol as http_protocol
from gateway.http.errors import FAULTS
from gateway.serving import admission
from gateway.words import strict_json
from protocol.messages_gateway import FIRST_PRIORITY, LAST_PRIORITY
from runtime.settings import Group

PAGE = (Path(__file__).resolve().parents[2] / "docs/http.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of every row under a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if line[:1] == "|"]


def test_every_flag_has_a_row_with_its_default() -> None:
    defaults = {row[0]: row[1].split()[0] for row in rows("Limits") if row[0].startswith("`--")}
    wanted = {
        f"`{option.flag}`": str(option.default) for option in options_for("gateway") if option.group == Group.LIMITS
    }
    assert {name: default for name, default in defaults.items() if name != "`--context-length`"} == wanted


def test_what_is_fixed() -> None:
    limits = {row[0]: row[1].replace(",", "") for row in rows("Limits") if not row[0].startswith(("`--", "-"))}
    for name, value in (
        ("depth of the JSON", strict_json.MAX_DEPTH),
        ("`[` and `{` in the body", strict_json.MAX_CONTAINERS),
        ("strings in the body", strict_json.MAX_STRINGS),
        ("messages of a conversation", conversation_fields.MAX_MESSAGES),
        ("tools of a conversation", conversations.MAX_TOOLS),
        ("characters of the schemas of all tools together", conversations.MAX_SCHEMA_CHARS),
        ("characters of a stop string", sampling_fields.MAX_STOP_CHARS),
        ("`stop_token_ids`", sampling_fields.MAX_STOP_TOKEN_IDS),
        ("distance of `priority` from 0", LAST_PRIORITY),
        ("distance of `priority` from 0", -FIRST_PRIORITY),
        ("requests that wait for the one before them on a connection", http_protocol.MAX_PIPELINED),
        ("bytes between two pieces of a chunked body, or after it", http_protocol.FRAMING_BYTES),
    ):
        assert limits[name] == str(value), name
    bodies = limits["bytes of all bodies that are being read, parsed or tokenised"]
    assert bodies == f"{admission.BODIES} times `--max-body-bytes`"


def test_every_status_has_a_row() -> None:
    statuses = {int(number) for row in rows("Statuses") for number in re.findall(r"\d{3}", row[0])}
    assert statuses == set(FAULTS)
