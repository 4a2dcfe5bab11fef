from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.detokenizer import (
    ByteDetokenizer,
    Detokenizer,
    TokenBytes,
    WindowDetokenizer,
)
from runtime.byte_alphabet import byte_alphabet, is_byte_level
from tests.gateway.folders import BOS, END, VOCAB_SIZE, byte_tokenizer, piece_tokenizer

BYTES = byte_tokenizer()
PIECES = piece_tokenizer()
SPECIAL = frozenset(range(256, 259))
PIECES_SPECIAL = frozenset(range(3))


def new_bytes(skip_special: bool = True, context: Sequence[int] = ()) -> Detokenizer:
    return ByteDetokenizer(TokenBytes(BYTES, SPECIAL if skip_special else frozenset()), context)


def new_window(skip_special: bool = True, tokenizer: Any = PIECES, context: Sequence[int] = ()) -> Detokenizer:
    return WindowDetokenizer(tokenizer, PIECES_SPECIAL if skip_special else frozenset(), context)


def run(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.feed(token_id) for token_id in ids), detokenizer.flush()]


def test_kinds_are_told_apart() -> None:
    assert is_byte_level(BYTES) and not is_byte_level(PIECES)


@pytest.mark.parametrize("text", ["hello world", "naïve – 🙂 é", "日本語", "🙂🙂"])
def test_characters_come_whole(text: str) -> None:
    shown = run(new_bytes(), BYTES.encode(text).ids)
    assert "".join(shown) == text
    assert not any("\ufffd" in each for each in shown)


def test_special_tokens() -> None:
    ids = [BOS, 72, END, 105]
    assert "".join(run(new_bytes(), ids)) == "Hi"
    assert "".join(run(new_bytes(False), ids)) == "<|bos|>H<|end|>i"


@given(st.lists(st.integers(0, VOCAB_SIZE + 20), max_size=30), st.booleans())
def test_byte_level_equals_decoding_at_once(ids: list[int], skip: bool) -> None:
    assert "".join(run(new_bytes(skip), ids)) == BYTES.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("text", ["hello world", "he e 🙂 é", "日本"])
def test_window_keeps_spaces_and_whole_characters(text: str) -> None:
    ids = PIECES.encode("▁" + text.replace(" ", "▁")).ids
    shown = run(new_window(), ids)
    assert "".join(shown) == PIECES.decode(ids) == text
    assert not any("\ufffd" in each for each in shown)


def test_window_does_not_wait_for_ever() -> None:
    detokenizer = new_window()
    shown = [detokenizer.feed(3 + 0xFF) for _ in range(100)]
    assert "".join(shown).count("\ufffd") >= 64


@given(st.lists(st.integers(0, 2) | st.integers(259, 290), max_size=30), st.booleans())
def test_window_equals_decoding_at_once(ids: list[int], skip: bool) -> None:
    assert "".join(run(new_window(skip), ids)) == PIECES.decode(ids, skip_special_tokens=skip)


class Counted:
    """A tokenizer that notes the longest decode."""

    def __init__(self) -> None:
        self.longest = 0

    def id_to_token(self, token_id: int) -> str | None:
        return PIECES.id_to_token(token_id)

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        self.longest = max(self.longest, len(ids))
        return PIECES.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("token_id", [2, 100_000], ids=["special", "no-token"])
def test_window_stays_short_when_no_text_comes(token_id: int) -> None:
    tokenizer = Counted()
    shown = run(new_window(tokenizer=tokenizer), [260, *[token_id] * 500, 262])
    assert "".join(shown) == "he wor"
    assert tokenizer.longest <= 2


def test_no_text() -> None:
    assert run(Detokenizer(), [1, 2]) == ["", "", ""]


def test_tokens_of_whole_characters_and_of_parts_of_them_mix() -> None:
    """Whole characters take a shorter way, which must not be taken inside a character."""
    ids = {
        byte: token_id for char, byte in byte_alphabet().items() if (token_id := BYTES.token_to_id(char)) is not None
    }
    token_bytes = TokenBytes(BYTES, SPECIAL)
    for raw in ("aé€z".encode(), b"a\xc3z", b"\xe2\x82a\xe2\x82\xac!", b"\xff\xc3"):
        for _ in range(2):  # the second time every token is known
            detokenizer = ByteDetokenizer(token_bytes, ())
            text = "".join(detokenizer.feed(ids[byte]) for byte in raw) + detokenizer.flush()
            assert text == raw.decode(errors="replace")
            assert detokenizer.feed(ids[ord("x")]) == "x"


BYTE_IDS = {
    byte: token_id for char, byte in byte_alphabet().items() if (token_id := BYTES.token_to_id(char)) is not None
}


def ids_of(kind: str, raw: bytes) -> list[int]:
    """A token for each byte."""
    return [BYTE_IDS[byte] if kind == "bytes" else 3 + byte for byte in raw]


def answer(kind: str, prompt: list[int], ids: list[int]) -> str:
    """What is shown of `ids` after `prompt`."""
    return "".join(run(new_bytes(context=prompt) if kind == "bytes" else new_window(context=prompt), ids))


def test_the_first_word_keeps_its_space() -> None:
    he, wor = PIECES.encode("▁he").ids, PIECES.encode("▁wor").ids
    assert answer("pieces", he, wor) == answer("pieces", [*he, 2, 2], wor) == " wor"
    assert answer("pieces", [], wor) == answer("pieces", [1], wor) == "wor", "there the whole text begins"
    assert answer("bytes", BYTES.encode("he").ids, BYTES.encode(" wo").ids) == " wo"


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@pytest.mark.parametrize("text", ["日本", "🙂é", "a\ufffd日", "é🙂\ufffd"])
def test_a_character_that_the_prompt_begins_is_completed(kind: str, text: str) -> None:
    raw = text.encode()
    for cut in range(1, len(raw) + 1):
        whole = raw[:cut].decode(errors="ignore")
        assert answer(kind, ids_of(kind, raw[:cut]), ids_of(kind, raw[cut:])) == text[len(whole) :], cut


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@pytest.mark.parametrize("part", [b"\xe6", b"\xe6\x97", b"\xf0\x9f\x99", b"\xff", b"a\xff\xff\xff\xff", b"\x97\x97"])
def test_what_the_prompt_left_incomplete_is_not_the_answers(kind: str, part: bytes) -> None:
    prompt = ids_of(kind, part)
    letters = BYTES.encode("hello").ids if kind == "bytes" else PIECES.encode("hello").ids
    assert answer(kind, prompt, letters) == "hello"
    assert answer(kind, prompt, []) == ""
    assert answer(kind, prompt, [256 if kind == "bytes" else 2]) == ""


@given(st.lists(st.integers(0, 2) | st.integers(259, 290), max_size=50), st.integers(0, 50))
def test_prompt_and_answer_make_the_whole_text(ids: list[int], cut: int) -> None:
    prompt = ids[:cut]
    whole = PIECES.decode(ids, skip_special_tokens=True)
    if PIECES.decode(prompt[-32:], skip_special_tokens=True):
        assert PIECES.decode(prompt, skip_special_tokens=True) + answer("pieces", prompt, ids[cut:]) == whole


@given(st.lists(st.integers(0, VOCAB_SIZE), max_size=30), st.lists(st.integers(0, VOCAB_SIZE), max_size=10))
def test_byte_level_goes_on_where_the_prompt_ends(prompt: list[int], ids: list[int]) -> None:
    """But for the character on the seam, the answer is what decoding both at once adds."""
    both, alone = BYTES.decode(prompt + ids), BYTES.decode(prompt)
    shown = answer("bytes", prompt, ids)
    assert both.endswith(shown)
    assert both in (alone + shown, alone.removesuffix("\ufffd") + shown)
