import pytest

from gateway.serving.service import ModelNames
from protocol.errors import UnknownModel

NAMES = ModelNames(("tale", "fable"), "models/story/")


@pytest.mark.parametrize("name", [None, "tale", "fable", "models/story/", "models/story"])
def test_names_that_are_understood(name: str | None) -> None:
    NAMES.check(name)
    assert NAMES.first == "tale"


@pytest.mark.parametrize("name", ["", "/", "story", "models", "TALE", "tale/", "x" * 1000])
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        NAMES.check(name)
    assert caught.value.param == "model" and caught.value.message.endswith(
        "expected 'tale' or 'fable', which are served here"
    )
    assert len(caught.value.message) < 300


def test_every_name_is_understood() -> None:
    assert NAMES.all == ("tale", "fable", "models/story/", "models/story")
    assert ModelNames(("models/story",), "models/story").all == ("models/story",)
    assert ModelNames(("a", "b")).all == ("a", "b")


def test_one_name_and_no_folder() -> None:
    with pytest.raises(UnknownModel, match="model: got '', expected 'story', which is served here"):
        ModelNames(("story",)).check("")
