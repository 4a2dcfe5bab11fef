"""A text in slices has the tokens of the whole: for each kind of tokenizer, on texts that are hard to cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from gateway.text.tokenizer import MAX_TRIES, STRIDE_CHARS, Cuts, find_cuts

CORPUS = [
    "Once upon a time there was a little girl named Lily. She didn't like the 1234 naïve bugs!!! ",
    "it's  a   test\n\nof lines\nand 日本語 の テスト。\n12 34567\t<b>x</b> ... \r\n 'll we're  x▁y ▁ z",
    "aaaa bbbb abab baba a b ab ba  ab\nba é e\u0301 ﬁ ͺ x ½",
] * 4
GPT_4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = [
    AddedToken("<s>", special=True),
    AddedToken("<mask>", special=True, lstrip=True, rstrip=True),
    AddedToken("a b", normalized=False),
    AddedToken("<x y>", normalized=False, single_word=True),
]


def split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    """As tokenizers of the GPT-4 kind are written."""
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def trained(
    pre_tokenizer: pre_tokenizers.PreTokenizer | None,
    normalizer: normalizers.Normalizer | None = None,
    model: models.Model | None = None,
    normalized: bool = False,
) -> Tokenizer:
    """A small vocabulary of the corpus; with added tokens, among them one with a space in it."""
    tokenizer = Tokenizer(model or models.BPE(unk_token="<unk>", fuse_unk=True))
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    common: Any = {"vocab_size": 400, "special_tokens": ["<unk>"], "show_progress": False}
    trainer: Any = trainers.BpeTrainer(**common)
    if isinstance(model, models.WordPiece):
        trainer = trainers.WordPieceTrainer(**common)
    elif isinstance(model, models.Unigram):
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **common)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([*SPECIAL, AddedToken("zz", normalized=normalized)])
    return tokenizer


def llama(split: bool | None = None) -> Tokenizer:
    """Merges over whole texts, as Llama 2 and Gemma have them. Trained on words, so that no token reaches across."""
    marks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = trained(pre_tokenizers.Metaspace(prepend_scheme="always", split=True))
    tokenizer.normalizer = marks if split is None else normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = None
    if split is not None:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer


def metaspace(scheme: str, split: bool) -> Tokenizer:
    """SentencePiece's words; without `split` the whole text is one."""
    tokenizer = trained(pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    return tokenizer


def sequence(*parts: pre_tokenizers.PreTokenizer) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(list(parts))


BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "bundled": lambda: Tokenizer.from_file(str(Path("models/story/tokenizer.json"))),
    "GPT-2": lambda: trained(BYTE_LEVEL, normalized=True),
    "prefix space": lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "GPT-4": lambda: trained(split_by(GPT_4), normalizers.NFC()),
    "GPT-4o": lambda: trained(split_by(GPT_4O)),
    "NFKC": lambda: trained(split_by(GPT_4), normalizers.NFKC()),
    "digits": lambda: trained(sequence(pre_tokenizers.Digits(individual_digits=False), BYTE_LEVEL)),
    "punctuation": lambda: trained(sequence(pre_tokenizers.Punctuation("contiguous"), BYTE_LEVEL)),
    "three digits": lambda: trained(
        sequence(pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), *[split_by(GPT_4)])
    ),
    "Llama 2": llama,
    "Gemma": lambda: llama(True),
    "Metaspace always": lambda: metaspace("always", True),
    "Metaspace first": lambda: metaspace("first", True),
    "Metaspace never": lambda: metaspace("never", True),
    "Metaspace whole": lambda: metaspace("first", False),
    "BERT": lambda: trained(
        pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer(), models.WordPiece(unk_token="<unk>")
    ),
    "Unigram": lambda: trained(pre_tokenizers.Metaspace(), normalizers.NFKC(), models.Unigram()),
}
TOKENIZERS = {name: make() for name, make in MAKERS.items()}


def cuts_of(tokenizer: Tokenizer) -> Cuts:
    found = find_cuts(tokenizer)
    assert found is not None
    return found


def ids_of(tokenizer: Tokenizer, parts: list[str]) -> list[int]:
    return [token_id for part in parts for token_id in tokenizer.encode(part, add_special_tokens=False).ids]


WORDS = (
    "a b ab it's 'll 日本 。 1 2345 ! ... / é e\u0301 \u0301 ﬁ ͺ \u00a8 \x00 ▁ <s> <mask> <unk> zz ZZ ½ \u0600 🙂 x - _"
)
BLANKS = [" ", " ", " ", "  ", "\n", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\x1c", "a b", "<x y>", "Once upon"]
PIECES = st.sampled_from([*WORDS.split(), *BLANKS, "\u1100", "\u1161"])
TEXTS = st.lists(PIECES, max_size=40).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=100)
@given(text=TEXTS, size=st.integers(1, 6))
def test_slices_have_the_tokens_of_the_whole(name: str, text: str, size: int) -> None:
    tokenizer = TOKENIZERS[name]
    parts = list(cuts_of(tokenizer).slices(text, size))
    assert ids_of(tokenizer, parts) == ids_of(tokenizer, [text]), parts


@pytest.mark.parametrize("name", TOKENIZERS)
def test_plain_text_is_cut_everywhere(name: str) -> None:
    parts = list(cuts_of(TOKENIZERS[name]).slices("hello there wide world " * 50, 10))
    assert len(parts) > 80 and max(map(len, parts)) < 20


def test_lines_are_cut_where_there_are_no_spaces() -> None:
    for name in ("bundled", "GPT-2", "GPT-4", "GPT-4o"):
        assert len(list(cuts_of(TOKENIZERS[name]).slices("日本語です。\n" * 50, 10))) > 20
    for name in ("Llama 2", "prefix space", "Metaspace always", "NFKC"):
        assert len(list(cuts_of(TOKENIZERS[name]).slices("日本語です。\n" * 50, 10))) == 1


UNPROVEN: dict[str, Callable[[], Tokenizer]] = {
    "a pattern that looks for anything": lambda: trained(split_by(r".{1,3}|\s+")),
    "a space among the characters of a class": lambda: trained(split_by(r"\p{N}|[\p{L}|\s+|\p{N}]")),
    "a pattern without spaces": lambda: trained(split_by(r"\p{L}+")),
    "joined with what is beside": lambda: trained(pre_tokenizers.Split(Regex(r"\s+"), "merged_with_previous")),
    "bytes without words": lambda: trained(pre_tokenizers.ByteLevel(use_regex=False)),
    "stripped": lambda: trained(BYTE_LEVEL, normalizers.Strip()),
    "removed accents": lambda: trained(BYTE_LEVEL, normalizers.StripAccents()),
    "tokens that are normalized": lambda: trained(BYTE_LEVEL, normalizers.Lowercase(), normalized=True),
    "punctuation joined": lambda: trained(sequence(pre_tokenizers.Punctuation("merged_with_next"), BYTE_LEVEL)),
    "the likeliest of all": lambda: trained(pre_tokenizers.Metaspace(split=False), model=models.Unigram()),
    "subwords by place": lambda: trained(None, model=models.WordPiece(unk_token="<unk>")),
}


@pytest.mark.parametrize("name", UNPROVEN)
def test_what_is_not_proven_is_not_cut(name: str) -> None:
    assert find_cuts(UNPROVEN[name]()) is None


def test_tokens_that_reach_across_a_space_forbid_a_cut_there() -> None:
    vocab = {char: place for place, char in enumerate("▁ab")} | {"a▁": 3, "a▁b": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "▁"), ("a▁", "b")]))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    assert list(cuts_of(tokenizer).slices("a b a b b b", 1)) == ["a b", " a b", " b", " b"]


def test_a_text_full_of_added_tokens_takes_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts, tried, is_exact = cuts_of(TOKENIZERS["GPT-2"]), list[int](), Cuts._is_exact

    def noted(self: Cuts, text: str, cut: int) -> bool:
        tried.append(cut)
        return is_exact(self, text, cut)

    monkeypatch.setattr(Cuts, "_is_exact", noted)
    text = "<s> x" * STRIDE_CHARS
    assert list(cuts.slices(text)) == [text]
    assert len(tried) <= MAX_TRIES * (len(text) // STRIDE_CHARS + 1)


def test_a_pattern_may_spell_line_breaks_as_they_are() -> None:
    assert find_cuts(trained(split_by(GPT_4.replace(r"\r\n", "\r\n")))) is not None
