import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.stop_strings import StopSet, StopStrings


def stream(stops: list[str], pieces: list[str]) -> tuple[str, list[str], bool]:
    """The text shown, the shown pieces, whether a stop string was found."""
    scanner = StopStrings(StopSet(stops))
    shown = []
    for piece in pieces:
        shown.append(scanner.feed(piece))
        if scanner.matched is not None:
            return "".join(shown), shown, True
    shown.append(scanner.flush())
    return "".join(shown), shown, False


def longest_start(stops: list[str], text: str) -> int:
    """Characters at the end of `text` that may become a stop string."""
    return max((size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size])), default=0)


def first_to_complete(stops: list[str], text: str) -> str:
    """The definition, letter by letter."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


def test_across_pieces() -> None:
    assert stream(["STOP"], ["go S", "TO", "P on"]) == ("go ", ["go ", "", ""], True)


def test_what_only_looked_like_one_is_shown() -> None:
    assert stream(["STOP"], ["go ST", "AY"]) == ("go STAY", ["go ", "STAY", ""], False)
    assert stream(["STOP"], ["go ST"]) == ("go ST", ["go ", "ST"], False)


def test_overlapping_start() -> None:
    assert stream(["aab"], ["a", "a", "a", "b"])[0] == "a"


@pytest.mark.parametrize(("stops", "text", "shown"), [(["b", "ab"], "xabz", "x"), (["z", "b"], "abz", "a")])
def test_the_first_wins(stops: list[str], text: str, shown: str) -> None:
    assert stream(stops, [text])[0] == shown


def test_without_stops_everything_passes() -> None:
    assert stream([], ["a", "", "b"]) == ("ab", ["a", "", "b", ""], False)


letters = st.text("ab", max_size=14)


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(letters, max_size=8))
def test_cutting_the_text_into_pieces_changes_nothing(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    shown, _, matched = stream(stops, pieces)
    assert shown == stream(stops, [text])[0] == first_to_complete(stops, text)
    assert matched == any(stop in text for stop in stops)
    assert text.startswith(shown)


@given(st.lists(st.text("abc", min_size=1, max_size=7), min_size=1, max_size=6), st.text("abc", max_size=40))
def test_all_is_shown_but_what_may_become_a_stop_string(stops: list[str], text: str) -> None:
    scanner = StopStrings(StopSet(stops))
    shown = ""
    for place, char in enumerate(text, start=1):
        shown += scanner.feed(char)
        if scanner.matched is not None:
            break
        assert shown == text[: place - longest_start(stops, text[:place])]
    assert (shown if scanner.matched is not None else shown + scanner.flush()) == first_to_complete(stops, text)


def shown_in_theory(stops: list[str], parts: list[tuple[str, bool, bool]]) -> tuple[list[str], str | None]:
    """The definition: what is shown after each of these (text, may stop, is hidden), and the string that matched."""
    read, marks = "", ""
    shown: list[str] = []
    for text, may_stop, is_hidden in parts:
        for char in text:
            read, marks = read + char, marks + ("-" if is_hidden else char)
            found = max((stop for stop in stops if may_stop and read.endswith(stop)), key=len, default=None)
            if found is not None:
                return [*shown, marks[: len(read) - len(found)].replace("-", "")], found
        shown.append(marks[: len(read) - longest_start(stops, read)].replace("-", ""))
    return shown, None


part = st.tuples(st.text("abc", max_size=5), st.booleans(), st.booleans())


@given(st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4), st.lists(part, max_size=12))
def test_what_is_read_before_a_choice_may_stop_and_what_is_hidden_count_as_text(
    stops: list[str], parts: list[tuple[str, bool, bool]]
) -> None:
    expected, match = shown_in_theory(stops, parts)
    scanner, shown = StopStrings(StopSet(stops)), [""]
    for text, may_stop, is_hidden in parts[: len(expected)]:
        shown.append(shown[-1] + scanner.feed(text, may_stop=may_stop, is_hidden=is_hidden))
    assert shown[1:] == expected and scanner.matched == match

    visible = "".join(text for text, _, is_hidden in parts if not is_hidden)
    if match is None:
        assert shown[-1] + scanner.flush() == visible, "nothing is lost"
    else:
        assert visible.startswith(shown[-1]) and scanner.flush() == ""


def test_choices_share_the_automaton_and_nothing_else() -> None:
    stops = StopSet(["abc"])
    one, other = StopStrings(stops), StopStrings(stops)
    assert (one.feed("ab"), other.feed("xa"), one.feed("c"), other.feed("bd")) == ("", "x", "", "abd")
    assert one.matched == "abc" and other.matched is None


def steps_of(stops: list[str], text: str) -> int:
    """Instructions of the interpreter that feeding `text`, a character at a time, takes."""
    num_steps = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal num_steps
        frame.f_trace_opcodes = True
        num_steps += event == "opcode"
        return count

    scanner = StopStrings(StopSet(stops))
    before = sys.gettrace()
    sys.settrace(count)
    try:
        for char in text:
            scanner.feed(char)
    finally:
        sys.settrace(before)
    return num_steps


@pytest.mark.parametrize("near_miss", ["a" * 1023 + "!", "ab" * 511 + "a!"])
def test_the_steps_of_a_character_do_not_depend_on_the_stop_strings(near_miss: str) -> None:
    decoys = [near_miss[: 1024 - place] + "#" * place for place in range(1, 64)]
    text = near_miss[:1023] * 2
    alone = steps_of(["#"], text)
    assert len(text) < steps_of([*decoys, near_miss], text) < 3 * alone
