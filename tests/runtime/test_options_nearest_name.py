import pytest

from runtime.options import nearest_name


@pytest.mark.parametrize(
    "typed, meant",
    [
        ("poort", "port"),
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
