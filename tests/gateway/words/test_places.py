"""Places in a client's words: the longest beginning of a place that has a name, and the rest behind it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.words.places import Fault, Origin, Place, field, named

STEPS = st.one_of(st.sampled_from(["a", "b", "c"]), st.integers(0, 3))
PLACES = st.lists(STEPS, min_size=1, max_size=4).map(tuple)
NAMES = st.builds(Origin, *[st.sampled_from(["x", "y", "z.x"])] * 3)


def told(fault: Fault, origins: dict[Place, Origin]) -> tuple[str, str | None]:
    with pytest.raises(Fault) as caught, named(origins):
        raise fault
    assert str(fault) == fault.message and caught.value is fault
    return fault.message, fault.param


@given(PLACES, st.dictionaries(PLACES, NAMES, max_size=6))
def test_a_place_is_told_by_its_longest_beginning_that_has_a_name(place: Place, origins: dict[Place, Origin]) -> None:
    path, param = told(Fault(place, place), origins)
    named_beginnings = [each for each in origins if place[: len(each)] == each]
    if not named_beginnings:
        assert param == str(place[0])
        return
    longest = max(named_beginnings, key=len)
    rest = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place[len(longest) :])
    assert (path, param) == (origins[longest].path + rest, origins[longest].param)


def test_a_sentence_begins_with_the_path_and_goes_on_with_short_names() -> None:
    origins: dict[Place, Origin] = {("a",): Origin("box.a", "box", "a"), ("b",): Origin("box.b", "box", "b")}
    fault = Fault(("a",), ("a",), ": more than ", ("b",), " and ", ("a", 1))
    assert fault.message == "a: more than b and a[1]", "before it is named"
    assert told(fault, origins) == ("box.a: more than b and a[1]", "box")
    assert told(Fault(("b",), "too long: ", ("b",)), origins) == ("too long: b", "box")


def test_only_the_first_names_count() -> None:
    fault = Fault(("a",), ("a",))
    assert told(fault, {("a",): field("inner")}) == ("inner", "inner")
    assert told(fault, {("a",): field("outer")}) == ("inner", "inner")
