"""Answers for the tests of channels: what a choice is made of, cut anywhere, and what channels make of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from gateway.text.channels.channels import Channels
from gateway.text.channels.fold import Whole, fold
from gateway.text.channels.formats import GLM, HERMES, MINIMAX_M2, QWEN3_CODER, THINK
from gateway.text.channels.markers import Markers
from gateway.text.channels.readers import Format
from gateway.words.events import Event

JSON = Format(HERMES, THINK)
TAGS = Format(QWEN3_CODER, THINK)
MINIMAX = Format(MINIMAX_M2, THINK)
PAIRS = Format(GLM, THINK)
FORMATS = {"json": JSON, "tags": TAGS, "minimax": MINIMAX, "pairs": PAIRS}
FIRST_ID = 100  # of the markers of a format, where they have ids

TOOLS: Mapping[str, Any] = {
    "f": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "items": {"type": "array"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    },
    "g.h-1": {"type": "object"},
}

Piece = str | int  # text, or a marker by its id


def markers(form: Format, with_ids: bool = False) -> Markers:
    """The markers of a format, found in text or as one token each."""
    ids = {marker: FIRST_ID + place for place, marker in enumerate(form.markers)} if with_ids else {}
    return Markers(form, ids.get)


def channels(
    form: Format, *, with_ids: bool = False, opened: bool = False, tools: Mapping[str, Any] = TOOLS
) -> Channels:
    """The channels of a choice that has begun."""
    return Channels(markers(form, with_ids), tools=tools, is_reasoning_open=opened, response_id="answer", choice=0)


def deliver(reader: Channels, pieces: Sequence[Piece], *, is_cut: bool = False) -> list[list[Event]]:
    """The events of each piece, and those at the end."""
    told = [reader.marker(piece) if isinstance(piece, int) else reader.text(piece) for piece in pieces]
    return [*told, reader.end(is_cut=is_cut)]


def read(
    form: Format,
    pieces: Sequence[Piece],
    *,
    opened: bool = False,
    tools: Mapping[str, Any] = TOOLS,
    is_cut: bool = False,
) -> Whole:
    """What a whole answer was. With an id among the pieces, markers count by their ids."""
    with_ids = any(isinstance(piece, int) for piece in pieces)
    told = deliver(channels(form, with_ids=with_ids, opened=opened, tools=tools), pieces, is_cut=is_cut)
    return fold(event for events in told for event in events)


def ids_of(form: Format) -> dict[str, int]:
    """The id of each marker, where they have ids."""
    return {marker: token_id for token_id, marker in markers(form, with_ids=True).by_id.items()}


def by_ids(form: Format, text: str) -> list[Piece]:
    """A text in which each marker is its id."""
    ids, rest = ids_of(form), text
    pieces: list[Piece] = []
    while rest:
        places = [(rest.index(marker), marker) for marker in ids if marker in rest]
        if not places:
            return [*pieces, rest]
        place, marker = min(places)
        pieces += [rest[:place], ids[marker]] if place else [ids[marker]]
        rest = rest[place + len(marker) :]
    return pieces


def text_of(form: Format, pieces: Sequence[Piece]) -> str:
    """The text of pieces, with that of the markers."""
    texts = markers(form, with_ids=True).by_id
    return "".join(piece if isinstance(piece, str) else texts[piece] for piece in pieces)


def cut(pieces: Sequence[Piece], places: Sequence[int]) -> list[Piece]:
    """The same pieces, their texts cut: `places` says how long each part is, in turn."""
    parts: list[Piece] = []
    lengths = iter(places)
    for piece in pieces:
        if isinstance(piece, int):
            parts.append(piece)
            continue
        while piece:
            length = next(lengths, len(piece))
            parts.append(piece[:length])
            piece = piece[length:]
    return parts


def single(pieces: Sequence[Piece]) -> list[Piece]:
    """The same pieces, character by character."""
    return [part for piece in pieces for part in ([piece] if isinstance(piece, int) else piece)]


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The same pieces, neighbouring texts as one."""
    parts: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and parts and isinstance(parts[-1], str):
            parts[-1] += piece
        else:
            parts.append(piece)
    return parts


PARTS_OF_JSON = (
    *('{"name": "f", "arguments": {"text": "', '{"name": "f", "arguments": {', '{"name": "f"}', '{"name": "f"'),
    *('{"arguments": {"count": 1}, "name": "g.h-1"}', '{"name": "f", "arguments": {}}', '"id": 7', '"count": 12'),
    *('{"name": "unknown", "arguments": {}}', '"}}', "}}", "}", '"', "\\", "\\u00e", ", ", "[", "]"),
    *(": ", "tru", "1e", "-"),
)
PARTS_OF_TAGS = (
    *("<function=f>", "<function=g.h-1>", "<function=unknown>", "<parameter=text>", "<parameter=count>"),
    *("<parameter=note>", "</parameter>", "</function>", "</parameter>\n</function>", "<functio", "<param", "</p"),
    *("<function=f>\n<parameter=text>\n", "\n</parameter>\n<parameter=items>\n", "[1, 2]", "null", "None", "5"),
)
PARTS_OF_MINIMAX = (
    *('<invoke name="f">', '<invoke name="unknown">', '<parameter name="text">', '<parameter name="count">'),
    *('<invoke name="f">\n<parameter name="text">', "</parameter>", "</invoke>", "<invoke", '<parameter name="'),
    *('"', ">", "7", "\n"),
)
PARTS_OF_PAIRS = (
    *("f", "g.h-1", "unknown", "<arg_key>text</arg_key>", "<arg_key>count</arg_key>\n<arg_value>", "</arg_value>", "7"),
    *("f\n<arg_key>text</arg_key>\n<arg_value>", "<arg_key>", "</arg_key>", "<arg_value>", "<arg_", "</arg_v", "key"),
)
PARTS_OF_TEXT = ("a", " ", "\n", "\n\n", "é", "<", "<tool", "x" * 70, " " * 70, "<think", "</")
PARTS = {"json": PARTS_OF_JSON, "tags": PARTS_OF_TAGS, "minimax": PARTS_OF_MINIMAX, "pairs": PARTS_OF_PAIRS}


@st.composite
def answers(draw: st.DrawFn, name: str, with_ids: bool) -> list[Piece]:
    """Parts of a format in any order: calls, what looks like one, broken ones, thoughts."""
    form = FORMATS[name]
    as_text = st.sampled_from((*PARTS[name], *PARTS_OF_TEXT, *form.markers))
    as_markers: st.SearchStrategy[Piece] = st.sampled_from(list(ids_of(form).values() if with_ids else form.markers))
    return draw(st.lists(st.one_of(as_text, as_text, as_markers), max_size=24))
