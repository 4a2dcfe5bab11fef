from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from gateway.text.plain_marks import BLOCK_CHARS, MARK, PlainMarks
from gateway.text.template_messages import Absent, Arguments
from gateway.text.tokenizer import SpecialTokens, TextTokenizer
from tests.fuzz.vocabularies import KINDS, library_tokenizer, tokenizer_of

MARKS = PlainMarks(["<|im_end|>", "<s>", "ab", "bc", "x"])
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("", ""),
        ("plain <s and |im_end|>", "plain <s and |im_end|>"),
        ("<|im_end|>", f"<{MARK}|im_end|>"),
        ("a<s>b<s>", f"a<{MARK}s>b<{MARK}s>"),
        ("abc", f"a{MARK}b{MARK}c"),
        ("xx", "xx"),
    ],
)
def test_each_special_token_is_broken_behind_its_first_character(text: str, marked: str) -> None:
    assert MARKS.put(text) == marked
    assert PlainMarks(()).put(text) is text


@pytest.mark.parametrize("shift", range(-12, 3))
def test_a_token_across_two_blocks(shift: int) -> None:
    before = "-" * (BLOCK_CHARS + shift)
    assert MARKS.put(f"{before}<|im_end|>-<s>") == f"{before}<{MARK}|im_end|>-<{MARK}s>"


def test_what_is_no_text_stays() -> None:
    value = {"<s>": [1, None, True, 2.5, {"b": "<s>"}], "c": Absent()}
    found = MARKS.put(value)
    assert found == {f"<{MARK}s>": [1, None, True, 2.5, {"b": f"<{MARK}s>"}], "c": Absent()}
    assert isinstance(found["c"], Absent)
    arguments = MARKS.put(Arguments({"a": "<s>"}, '{"a":  "<s>"}'))
    assert str(arguments) == f'{{"a":  "<{MARK}s>"}}' and arguments == {"a": f"<{MARK}s>"}


@cache
def with_special(kind: str) -> TextTokenizer:
    """A tokenizer of this kind that has SPECIAL, and begins each prompt with the first of them."""
    tokenizer = library_tokenizer(kind)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return TextTokenizer(tokenizer, SpecialTokens({"bos_token": SPECIAL[0]}, True, None))


texts = st.lists(
    st.sampled_from([*SPECIAL, "<|im_", "end|>", "<", "|>", "\n", " ", "a", "he", "  ", MARK, "\u00e9"]), max_size=8
).map("".join)


@pytest.mark.parametrize("kind", KINDS[1:])
@given(parts=st.lists(texts, min_size=1, max_size=4), add_special=st.booleans())
def test_a_marked_text_has_no_special_token_of_its_own(kind: str, parts: list[str], add_special: bool) -> None:
    """Those between the parts, which the template has written, are the only ones."""
    tokenizer = with_special(kind)
    special_ids = {ids[0] for text in SPECIAL if (ids := tokenizer.encode_plain(text)) is not None}
    marks = PlainMarks(tokenizer.special_texts)
    rendered = SPECIAL[1].join(map(marks.put, parts))
    ids = tokenizer.encode_rendered(rendered, add_special=add_special)
    assert ids is not None and len(special_ids) == len(SPECIAL)
    assert sum(token_id in special_ids for token_id in ids) == len(parts) - 1 + add_special


@pytest.mark.parametrize("kind", ["lines", "compatibility", "whole", "pieces"])
@given(text=texts)
def test_the_text_of_the_tokens_is_that_of_the_client(kind: str, text: str) -> None:
    tokenizer = with_special(kind)
    ids = tokenizer.encode_rendered(PlainMarks(tokenizer.special_texts).put(text))
    assert ids is not None
    detokenizer = tokenizer.detokenizer((), False)
    assert "".join(map(detokenizer.feed, ids)) + detokenizer.flush() == text.replace(MARK, "")


def test_a_text_without_special_tokens_has_the_tokens_that_it_always_had() -> None:
    for kind in KINDS:
        tokenizer = tokenizer_of(kind)
        assert tokenizer.encode_rendered("Once upon a time") == tokenizer.encode_plain("Once upon a time")


@given(st.integers(0, 40))
def test_no_more_is_read_than_a_prompt_may_have(most: int) -> None:
    tokenizer = tokenizer_of("story")
    text = PlainMarks(tokenizer.special_texts).put("<|im_end|>a" * 3)
    whole = tokenizer.encode_rendered(text)
    assert whole is not None
    found = tokenizer.encode_rendered(text, most)
    assert found == whole or (found is None and len(whole) > most)


def test_the_same_part_again_and_again_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, seen = tokenizer_of("story"), list[str]()
    real = tokenizer.encode_plain

    def counted(text: str, most: int | None = None) -> list[int] | None:
        seen.append(text)
        return real(text, most)

    monkeypatch.setattr(tokenizer, "encode_plain", counted)
    found = tokenizer.encode_rendered(PlainMarks(tokenizer.special_texts).put("<|im_end|>" * 1000))
    assert found is not None and len(found) == 1000 * (len(found) // 1000) and len(seen) <= 4
