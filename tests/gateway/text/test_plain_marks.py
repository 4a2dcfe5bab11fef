from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

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
        ("-<s>-<s>", f"-<{MARK}s>-<{MARK}s>"),
        ("abc", f"a{MARK}b{MARK}c"),
        ("xx", "xx"),
    ],
)
def test_each_special_token_is_broken_behind_its_first_character(text: str, marked: str) -> None:
    assert str(MARKS.put(text)) == marked
    assert PlainMarks(()).put(text) is text


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("k<|im_end|", f"k<|im_end|{MARK}"),
        ("k<|im \n", f"k<|im{MARK} \n"),
        ("|>k", f"{MARK}|>k"),
        (" end|>k", f" {MARK}end|>k"),
        ("|im_end|", f"{MARK}|im_end|"),
        (" im_ ", f" {MARK}im_ "),
        ("<s>k<", f"<{MARK}s>k<{MARK}"),
        (" ", " "),
        ("k<|im_end", f"k<|im_end{MARK}"),
        ("im_endk", "im_endk"),
    ],
)
def test_a_piece_of_a_special_token_at_an_edge_is_cut_off_from_the_text_beside_it(text: str, marked: str) -> None:
    assert str(MARKS.put(text)) == marked


def test_templates_compare_a_marked_text_and_find_it_as_a_key() -> None:
    key = MARKS.put("im_end")
    assert str(key) == f"{MARK}im_end" and key == "im_end" and key not in ("im", None)
    assert {key: 1}["im_end"] == 1 and key in {"im_end": 1} and (key != "im_end", key != "im") == (False, True)


@pytest.mark.parametrize("shift", range(-12, 3))
def test_a_token_across_two_blocks(shift: int) -> None:
    before = "-" * (BLOCK_CHARS + shift)
    assert str(MARKS.put(f"{before}<|im_end|>-<s>")) == f"{before}<{MARK}|im_end|>-<{MARK}s>"


def test_what_is_no_text_stays() -> None:
    value: dict[str, Any] = {"<s>": [1, None, True, 2.5, {"k": "<s>"}], "l": Absent()}
    found = MARKS.put(value)
    broken = f"<{MARK}s>"
    assert list(map(str, found)) == [broken, "l"] and found == value
    assert found["<s>"][:4] == [1, None, True, 2.5] and str(found["<s>"][4]["k"]) == broken
    assert isinstance(found["l"], Absent)
    arguments = MARKS.put(Arguments({"k": "<s>"}, '{"k":  "<s>"}'))
    assert str(arguments) == f'{{"k":  "{broken}"}}' and str(arguments["k"]) == broken


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


PIECES = st.text("<|>ab ", max_size=5)


def characters(special: list[str]) -> tuple[TextTokenizer, dict[int, str]]:
    """A tokenizer with a token for each character and each of these special tokens; and their texts."""
    tokenizer = Tokenizer(models.BPE({char: place for place, char in enumerate("<|>ab \n")}, []))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    names = {token_id: text for text, token_id in tokenizer.get_vocab(with_added_tokens=True).items()}
    return TextTokenizer(tokenizer, SpecialTokens({}, None, None)), names


@given(
    special=st.lists(st.text("<|>ab ", min_size=2, max_size=6), min_size=1, max_size=4, unique=True),
    between=st.lists(PIECES, min_size=5, max_size=5),
    data=st.data(),
    strips=st.booleans(),
)
@example(["<|ab|>"], ["<", ">", "", "", ""], None, False)
def test_no_special_token_lies_over_text_of_a_client_whatever_the_template_writes_beside_it(
    special: list[str], between: list[str], data: st.DataObject | None, strips: bool
) -> None:
    own = st.one_of(PIECES, st.sampled_from(special).flatmap(lambda text: st.sampled_from(pieces_of(text))))
    values = ["|ab|", "", "", ""] if data is None else data.draw(st.lists(own, min_size=4, max_size=4))
    tokenizer, names = characters(special)
    put = PlainMarks(tokenizer.special_texts).put
    shown = [put(value).strip() if strips else put(value) for value in values]
    ids = tokenizer.encode_rendered("".join(text for pair in zip(between, [*shown, ""], strict=True) for text in pair))
    assert ids is not None

    is_own = list[bool]()
    for text, value in zip(between, [*shown, ""], strict=True):
        is_own += [False] * len(text) + [True] * len(str(value).replace(MARK, ""))
    at = 0
    for token_id in ids:
        end = at + len(names[token_id])
        assert names[token_id] not in special or not any(is_own[at:end])
        at = end
    assert at == len(is_own)


def pieces_of(text: str) -> list[str]:
    return [text[begin:end] for begin in range(len(text)) for end in range(begin + 1, len(text) + 1)]


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
