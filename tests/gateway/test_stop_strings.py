import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stop_strings import StopStrings


def stream(stops: list[str], pieces: list[str]) -> tuple[str, list[str], str | None]:
    """The text shown, the shown pieces, the stop string."""
    scanner = StopStrings(stops)
    shown = []
    for piece in pieces:
        shown.append(scanner.feed(piece))
        if scanner.matched is not None:
            return "".join(shown), shown, scanner.matched
    shown.append(scanner.flush())
    return "".join(shown), shown, None


def first_to_complete(stops: list[str], text: str) -> str:
    """The definition, letter by letter."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


def test_across_pieces() -> None:
    assert stream(["STOP"], ["go S", "TO", "P on"]) == ("go ", ["go ", "", ""], "STOP")


def test_what_only_looked_like_one_is_shown() -> None:
    assert stream(["STOP"], ["go ST", "AY"]) == ("go STAY", ["go ", "STAY", ""], None)
    assert stream(["STOP"], ["go ST"]) == ("go ST", ["go ", "ST"], None)


def test_overlapping_start() -> None:
    assert stream(["aab"], ["a", "a", "a", "b"])[0] == "a"


@pytest.mark.parametrize(("stops", "text", "shown"), [(["b", "ab"], "xabz", "x"), (["z", "b"], "abz", "a")])
def test_the_first_wins(stops: list[str], text: str, shown: str) -> None:
    assert stream(stops, [text])[0] == shown


def test_without_stops_everything_passes() -> None:
    assert stream([], ["a", "", "b"]) == ("ab", ["a", "", "b", ""], None)


letters = st.text("ab", max_size=14)


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(letters, max_size=8))
def test_cutting_the_text_into_pieces_changes_nothing(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    shown, _, matched = stream(stops, pieces)
    assert shown == stream(stops, [text])[0] == first_to_complete(stops, text)
    assert (matched is not None) == any(stop in text for stop in stops)
    assert text.startswith(shown)
