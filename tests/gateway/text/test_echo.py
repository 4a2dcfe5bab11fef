from gateway.text.detokenizer import ByteDetokenizer, Detokenizer, TokenBytes
from gateway.text.echo import echo_of
from tests.gateway.folders import BOS, byte_tokenizer

TOKEN_BYTES = TokenBytes(byte_tokenizer(), frozenset({256, 257, 258}))


def detokenizer() -> ByteDetokenizer:
    return ByteDetokenizer(TOKEN_BYTES, ())


def test_the_echo_of_a_text_is_that_text() -> None:
    ids = (BOS, *"aé".encode())
    assert echo_of("aé", ids, detokenizer(), None).text == "aé"
    echo = echo_of("aé", ids, detokenizer(), 3)
    assert (echo.text, echo.offsets, echo.num_top) == ("aé", (0, 0, 1, 1), 3)


def test_the_echo_of_ids_is_their_text() -> None:
    echo = echo_of(None, tuple(b"ab\xc3"), detokenizer(), 0)
    assert (echo.text, echo.offsets) == ("ab", (0, 1, 2)), "the answer shows the character that is not complete"
    without = echo_of(None, (5, 6), Detokenizer(), 0)
    assert (without.text, without.offsets) == ("", (0, 0)), "without a tokenizer nothing has text"


def test_offsets_never_pass_the_text() -> None:
    assert echo_of("a", tuple(b"abc"), detokenizer(), 0).offsets == (0, 1, 1)
