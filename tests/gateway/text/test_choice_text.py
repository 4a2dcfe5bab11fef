from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.choice_text import ByteDetokenizer, ChoiceText, Detokenizer, TokenBytes, WindowDetokenizer
from gateway.text.stop_strings import StopSet
from gateway.words.pieces import Piece
from protocol.messages_gateway import FinishReason
from tests.gateway.folders import BOS, END, EOS, byte_tokenizer, piece_tokenizer

SPECIAL = {BOS: "<|bos|>", EOS: "<|eos|>", END: "<|end|>"}
TOKEN_BYTES = TokenBytes(byte_tokenizer(), frozenset(SPECIAL))
SHOWN_BYTES = TokenBytes(byte_tokenizer(), frozenset())  # special tokens are shown as they are spelt


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


def test_a_stop_string_within_min_tokens_is_read_and_shown_and_may_end_later() -> None:
    within = new_text("ab", min_tokens=3)
    assert [within.feed((token_id,), None).text for token_id in b"abca"] == ["", "ab", "c", ""]
    assert within.feed(tuple(b"b"), None) == Piece("", (98,), "stop") and within.num_tokens == 5

    across = new_text("bcd", min_tokens=3)
    assert "".join(across.feed((token_id,), None).text for token_id in b"abcd") == "a"
    assert across.stop_string == "bcd" and across.finish_reason == "stop"


@pytest.mark.parametrize("stop", ["<|end|>", "b<|end|>", "<|end|>c", "<|end|><|bos|>", "|end|"])
def test_a_stop_string_is_found_in_the_text_of_special_tokens_that_is_not_shown(stop: str) -> None:
    token_ids = (97, 98, END, *((BOS,) if "bos" in stop else ()), 99, 100)
    text = new_text(stop)
    piece = text.feed(token_ids, None)
    assert (text.stop_string, piece.finish_reason) == (stop, "stop")
    assert piece.text == ("a" if stop.startswith("b") else "ab")
    assert piece.token_ids == token_ids[: -2 + stop.endswith("c")]


def test_a_special_token_that_ends_the_choice_is_no_stop_string() -> None:
    text = new_text("<|eos|>")
    assert text.feed((97, EOS), FinishReason.STOP) == Piece("a", (97, EOS), "stop")
    assert text.stop_string is None, "it ended by itself"


def test_special_tokens_are_stop_strings_of_other_vocabularies_too() -> None:
    tokenizer = piece_tokenizer()
    end, he, llo = (tokenizer.get_vocab()[token] for token in ("</s>", "▁he", "llo"))
    text = ChoiceText(WindowDetokenizer(tokenizer, frozenset({end}), ()), StopSet(["</s>"]), 0)
    assert text.feed((he, llo, end, he), None) == Piece("hello", (he, llo, end), "stop")
    assert Detokenizer().hidden_text(end) == ""


strings = st.lists(st.text("ab|<>end", min_size=1, max_size=4) | st.sampled_from([*SPECIAL.values()]), max_size=3)


def ended(text: ChoiceText, deliveries: list[tuple[int, ...]], finish: FinishReason) -> tuple[str, int, str | None]:
    """What a choice has shown, when it has ended."""
    shown = ""
    for place, token_ids in enumerate(deliveries, start=1):
        if text.finish_reason is None:
            shown += text.feed(token_ids, finish if place == len(deliveries) else None).text
    return shown, text.num_tokens, text.stop_string


@given(
    st.lists(st.sampled_from([*b"ab", *SPECIAL]), min_size=1, max_size=14),
    strings,
    st.integers(0, 8),
    st.sampled_from(FinishReason),
    st.sets(st.integers(1, 13)),
)
def test_a_choice_ends_where_it_would_if_special_tokens_were_shown(
    token_ids: list[int], stops: list[str], min_tokens: int, finish: FinishReason, cuts: set[int]
) -> None:
    places = [0, *(cut for cut in sorted(cuts) if cut < len(token_ids)), len(token_ids)]
    deliveries = [tuple(token_ids[start:end]) for start, end in pairwise(places)]

    def choice(vocabulary: TokenBytes) -> ChoiceText:
        return ChoiceText(ByteDetokenizer(vocabulary, ()), StopSet(stops), min_tokens)

    shown, num_tokens, stop = ended(choice(TOKEN_BYTES), deliveries, finish)
    whole, *where = ended(choice(SHOWN_BYTES), deliveries, finish)
    assert [num_tokens, stop] == where and (stop is None or num_tokens >= min_tokens)
    assert ended(choice(TOKEN_BYTES), [tuple(token_ids)], finish) == (shown, num_tokens, stop), "deliveries differ"

    if stop is None:
        for special in SPECIAL.values():
            whole = whole.replace(special, "")
        assert shown == whole
