from gateway.choice_text import ByteDetokenizer, ChoiceText, Piece, StopSet, TokenBytes
from protocol.messages_gateway import FinishReason
from tests.gateway.folders import EOS, byte_tokenizer

TOKEN_BYTES = TokenBytes(byte_tokenizer(), frozenset({256, 257, 258}))


def new_text(*stops: str, min_tokens: int = 0) -> ChoiceText:
    return ChoiceText(ByteDetokenizer(TOKEN_BYTES, ()), StopSet(stops), min_tokens)


def test_one_piece_for_each_token() -> None:
    assert new_text().feed(list(b"ab"), None) == [Piece("a", 97, None), Piece("b", 98, None)]


def test_the_ending_token_has_no_text() -> None:
    assert new_text().feed([97, EOS], FinishReason.STOP) == [Piece("a", 97, None), Piece("", EOS, "stop")]
    assert new_text().feed([97, 98], FinishReason.STOP)[-1] == Piece("", 98, "stop")
    assert new_text().feed([97], FinishReason.LENGTH) == [Piece("a", 97, "length")]


def test_half_a_character_is_shown_at_the_end() -> None:
    text = new_text()
    assert text.feed(list("é".encode()), None) == [Piece("", 0xC3, None), Piece("é", 0xA9, None)]
    assert text.feed([0xC3], FinishReason.LENGTH) == [Piece("\ufffd", 0xC3, "length")]


def test_a_finish_without_tokens() -> None:
    text = new_text("bc")
    text.feed([97, 98], None)
    assert text.feed([], FinishReason.LENGTH) == [Piece("b", None, "length")]


def test_stop_string_ends_and_drops_the_rest() -> None:
    text = new_text("bc")
    assert text.feed(list(b"abcd"), None) == [Piece("a", 97, None), Piece("", 98, None), Piece("", 99, "stop")]
    assert text.hit_stop_string and text.num_tokens == 3 and text.finish_reason == "stop"


def test_stop_string_at_the_last_token_is_a_stop() -> None:
    assert new_text("b").feed([97, 98], FinishReason.LENGTH)[-1] == Piece("", 98, "stop")


def test_held_text_is_shown_at_the_end() -> None:
    assert new_text("bcd").feed([97, 98], FinishReason.LENGTH) == [Piece("a", 97, None), Piece("b", 98, "length")]


def test_min_tokens_come_before_stop_strings() -> None:
    text = new_text("b", min_tokens=3)
    assert [piece.text for piece in text.feed(list(b"bb"), None)] == ["b", "b"]
    assert text.feed([98], None) == [Piece("", 98, "stop")]
