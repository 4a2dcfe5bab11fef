import pytest

from protocol import errors
from protocol.errors import BatonError, InternalError, as_baton_error, error_from_code

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, BatonError) and kind is not BatonError
]


def test_every_code_is_its_own() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes) == 20


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_its_code(kind: type[BatonError]) -> None:
    error = error_from_code(kind.code, "what happened")
    assert type(error) is kind
    assert (error.message, error.code, str(error)) == ("what happened", kind.code, "what happened")


def test_an_unknown_code_keeps_its_word() -> None:
    error = error_from_code("quota_exceeded", "too much")
    assert type(error) is InternalError
    assert error.message == "quota_exceeded: too much"


def test_any_exception_becomes_ours_and_ours_stays() -> None:
    ours = errors.Overloaded("full", param="n")
    assert as_baton_error(ours) is ours
    assert ours.param == "n"
    made = as_baton_error(KeyError("x"))
    assert (type(made), made.message) == (InternalError, "KeyError: 'x'")
