import pytest

from runtime.options import nearest_name, num_edits


@pytest.mark.parametrize(
    "one, other, edits",
    [
        ("", "", 0),
        ("", "abc", 3),
        ("port", "port", 0),
        ("prot", "port", 1),  # two neighbours swapped
        ("ptor", "port", 2),
        ("pot", "port", 1),
        ("poort", "port", 1),
        ("part", "port", 1),
        ("ca", "abc", 3),  # no letter is edited twice
        ("page-szie", "page-size", 1),
    ],
)
def test_edits(one: str, other: str, edits: int) -> None:
    assert num_edits(one, other) == num_edits(other, one) == edits


@pytest.mark.parametrize(
    "typed, meant",
    [
        ("prot", "port"),  # by parts that are alike, `prompt` would be nearer
        ("prompy", "prompt"),
        ("Port", "port"),
        ("max-requests", "max-running-requests"),  # many letters are missing, but the parts are alike
        ("max_running_requests", "max-running-requests"),
        ("qqq", None),
        ("", None),
    ],
)
def test_the_name_that_was_meant(typed: str, meant: str | None) -> None:
    assert nearest_name(typed, ("prompt", "port", "max-running-requests")) == meant


def test_without_names_none_is_meant() -> None:
    assert nearest_name("port", ()) is None


def test_a_long_word_takes_no_time() -> None:
    assert nearest_name("q" * 1_000_000, ("port",)) is None
