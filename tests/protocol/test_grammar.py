import pytest

from protocol.grammar import grammar_fault, grammar_name


def test_a_name_stands_for_one_text() -> None:
    assert grammar_name("") == ""
    assert len(grammar_name("a")) == 32
    assert grammar_name("a") != grammar_name("b")
    assert grammar_fault("a", grammar_name("a"), (5,), 10) is None
    assert grammar_fault("", "", (), 10) is None


@pytest.mark.parametrize(
    ("text", "name", "eos", "told"),
    [
        ("a", grammar_name("b"), (5,), "expected 'a96faf705af16834e6c632b61e964e1f'"),
        ("a", "", (5,), "got the name ''"),
        ("", grammar_name("a"), (5,), "expected ''"),
        ("a", grammar_name("a"), (), "got no EOS token"),
        ("a", grammar_name("a"), (10,), "got no EOS token"),
    ],
)
def test_a_worker_refuses_what_it_cannot_follow(text: str, name: str, eos: tuple[int, ...], told: str) -> None:
    assert told in (grammar_fault(text, name, eos, 10) or "")
