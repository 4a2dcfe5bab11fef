import unicodedata
from functools import cache

import pytest
from tokenizers import Regex, Tokenizer, normalizers

from gateway.text.text_lengths import KEEPING, MAX_GROWTH, MOST_COMPOSED, STEADY, growth_of, longest_token
from tests.gateway.folders import byte_tokenizer

MADE = {
    "NFC": normalizers.NFC(),
    "NFD": normalizers.NFD(),
    "Lowercase": normalizers.Lowercase(),
    "Prepend": normalizers.Prepend("▁"),
    "Strip": normalizers.Strip(),
    "StripAccents": normalizers.StripAccents(),
    "Nmt": normalizers.Nmt(),
}


@cache
def characters() -> list[str]:
    return [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def with_normalizer(normalizer: normalizers.Normalizer | None) -> Tokenizer:
    tokenizer = byte_tokenizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def test_a_composed_character_is_made_of_so_many_at_most() -> None:
    """Any text is made of such runs, whatever its characters are."""
    runs = [unicodedata.normalize("NFD", each) for each in characters() if not unicodedata.is_normalized("NFD", each)]
    shrinks = [len(run) / len(unicodedata.normalize("NFC", run)) for run in runs]
    assert max(shrinks) == MOST_COMPOSED and set(KEEPING) == {"NFC", "NFD"}


def test_no_character_grows_more_than_is_known() -> None:
    assert max(len(unicodedata.normalize("NFKC", each)) for each in characters()) == MAX_GROWTH


@pytest.mark.parametrize("name", sorted(STEADY))
def test_a_steady_normalizer_makes_four_characters_of_one_at_most(name: str) -> None:
    """`Prepend` puts in its text once, and not for each character."""
    text = "".join(characters()[1:])
    normalized = MADE[name].normalize_str(text)
    assert len(normalized) <= 1.2 * len(text)
    assert max(map(len, MADE[name].normalize_str("x".join(characters()[1:])).split("x"))) <= 4


@pytest.mark.parametrize(
    ("normalizer", "growth"),
    [
        (None, 1),
        (normalizers.NFC(), 1),
        (normalizers.NFKC(), MAX_GROWTH),
        (normalizers.NFKD(), MAX_GROWTH),
        (normalizers.BertNormalizer(), MAX_GROWTH),
        (normalizers.Replace(" ", "▁"), 1),
        (normalizers.Replace("a", "aa"), MAX_GROWTH),
        (normalizers.Replace(Regex(" {2,}"), " "), 1),
        (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), 1),
        (normalizers.Sequence([normalizers.Lowercase(), normalizers.Sequence([normalizers.NFKC()])]), MAX_GROWTH),
    ],
)
def test_how_much_longer_a_text_may_become(normalizer: normalizers.Normalizer | None, growth: int) -> None:
    assert growth_of(with_normalizer(normalizer)) == growth


def test_what_a_token_stands_for() -> None:
    assert longest_token(with_normalizer(None)) == 7  # <|bos|>
    assert longest_token(with_normalizer(normalizers.NFC())) == 28
    assert longest_token(with_normalizer(normalizers.Strip())) is None
