from gateway.choice_text import ByteDetokenizer, ChoiceText, Piece, StopSet, TokenBytes
from protocol.messages_gateway import FinishReason
from tests.gateway.folders import EOS, byte_tokenizer

TOKEN_BYTES = TokenBytes(byte_tokenizer(), frozenset({256, 257, 258}))


def new_text(*stops: str, min_tokens: int = 0) -> ChoiceText:
    return ChoiceText(ByteDetokenizer(TOKEN_BYTES, ()), StopSet(stops), min_tokens)


def test_one_piece_for_all_tokens_of_a_delivery() -> None:
    text = new_text()
    assert text.feed((97,), None) == Piece("a", (97,), None)
    assert text.feed(tuple(b"bcd"), None) == Piece("bcd", tuple(b"bcd"), None)
    assert text.num_tokens == 4


def test_the_ending_token_has_no_text() -> None:
    assert new_text().feed((97, EOS), FinishReason.STOP) == Piece("a", (97, EOS), "stop")
    assert new_text().feed((98,), FinishReason.STOP) == Piece("", (98,), "stop")
    assert new_text().feed((97,), FinishReason.LENGTH) == Piece("a", (97,), "length")


def test_half_a_character_is_shown_at_the_end() -> None:
    text = new_text()
    assert text.feed((97, 0xC3), None) == Piece("a", (97, 0xC3), None)
    assert text.feed((0xA9,), None) == Piece("é", (0xA9,), None)
    assert text.feed((0xC3,), FinishReason.LENGTH) == Piece("\ufffd", (0xC3,), "length")


def test_a_finish_without_tokens() -> None:
    text = new_text("bc")
    text.feed((97, 98), None)
    assert text.feed((), FinishReason.LENGTH) == Piece("b", (), "length")


def test_stop_string_ends_and_drops_the_rest() -> None:
    text = new_text("bc")
    assert text.feed(tuple(b"abcd"), None) == Piece("a", tuple(b"abc"), "stop")
    assert text.hit_stop_string and text.num_tokens == 3 and text.finish_reason == "stop"


def test_stop_string_at_the_last_token_is_a_stop() -> None:
    assert new_text("b").feed((97, 98), FinishReason.LENGTH) == Piece("a", (97, 98), "stop")


def test_held_text_is_shown_at_the_end() -> None:
    text = new_text("bcd")
    assert text.feed((97, 98), None) == Piece("a", (97, 98), None)
    assert text.feed((99,), FinishReason.LENGTH) == Piece("bc", (99,), "length")


def test_min_tokens_come_before_stop_strings() -> None:
    text = new_text("b", min_tokens=3)
    assert text.feed((98,), None) == Piece("b", (98,), None)
    assert text.feed(tuple(b"bbb"), None) == Piece("b", (98, 98), "stop")
