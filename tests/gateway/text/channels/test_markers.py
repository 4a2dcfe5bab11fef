import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.channels.formats import HERMES, THINK, THINK_FIRST
from gateway.text.channels.markers import Markers, TextMarkers
from gateway.text.channels.readers import Format
from tests.gateway.text.channels.reading import FORMATS, markers

OPEN, CLOSE = "<think>", "</think>"
pieces = st.lists(
    st.sampled_from(["<tool_call>", "</tool_call>", "<think>", "<tool_", "<", "call>", "a", "</"]), max_size=12
)


def split(found: Markers, texts: list[str]) -> tuple[str, list[str]]:
    """The text with a mark for each marker, and the markers."""
    reader, shown, told = TextMarkers(found), "", []
    for text in texts:
        for plain, marker in reader.split(text):
            shown += plain + ("|" if marker else "")
            told += [marker] if marker else []
    return shown + reader.end(), told


@given(pieces)
def test_markers_in_text_are_found_however_it_is_cut(texts: list[str]) -> None:
    found = markers(FORMATS["json"])
    whole, told = split(found, ["".join(texts)])
    assert (whole, told) == split(found, texts) == split(found, list("".join(texts)))
    assert not any(marker in part for marker in found.in_text for part in whole.split("|"))


@given(pieces)
def test_no_marker_with_an_id_is_found_in_text(texts: list[str]) -> None:
    found = markers(FORMATS["json"], with_ids=True)
    assert split(found, texts) == ("".join(texts), [])


def test_each_marker_counts_in_one_way() -> None:
    found = Markers(FORMATS["json"], {OPEN: 7, CLOSE: 8}.get)
    assert dict(found.by_id) == {7: OPEN, 8: CLOSE}
    assert found.in_text == ("<tool_call>", "</tool_call>")


@pytest.mark.parametrize("name", FORMATS)
def test_no_marker_begins_another(name: str) -> None:
    """Else the shorter one would be found first, and the way a text is cut would matter."""
    texts = FORMATS[name].markers
    assert [(a, b) for a in texts for b in texts if a != b and a in b] == []


class TestReasoningIsOpen:
    @pytest.mark.parametrize(
        ("prompt", "is_open"),
        [(f"A: {OPEN}\n", True), (f"A: {OPEN}\n\n{CLOSE}\n\n", False), ("A: ", False), (f"U: {OPEN}\nA: ", False)],
    )
    @pytest.mark.parametrize("with_ids", [False, True])
    def test_by_the_end_of_the_prompt(self, prompt: str, is_open: bool, with_ids: bool) -> None:
        found = markers(FORMATS["json"], with_ids=with_ids)
        assert found.is_reasoning_open(prompt) is is_open

    def test_is_assumed_unless_the_prompt_has_closed_it(self) -> None:
        found = Markers(Format(HERMES, THINK_FIRST), lambda _: None)
        assert found.is_reasoning_open("A: ")
        assert not found.is_reasoning_open(f"A: {OPEN}\n{CLOSE}\n")
        assert not Markers(Format(HERMES, THINK), lambda _: None).is_reasoning_open("A: ")

    def test_not_without_thoughts(self) -> None:
        assert not Markers(Format(HERMES), lambda _: None).is_reasoning_open(f"A: {OPEN}")
