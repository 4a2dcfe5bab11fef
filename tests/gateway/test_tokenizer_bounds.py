"""A text that cannot be cut, or that its normalizer stretches, takes bounded memory before it is refused."""

import pytest
from tokenizers import Encoding, normalizers

from gateway.text_lengths import MAX_GROWTH
from gateway.tokenizer import SLICE_CHARS, SpecialTokens, TextTokenizer
from tests.gateway.folders import byte_tokenizer

NONE = SpecialTokens({}, None, None)


def tokenizer_that_counts(
    monkeypatch: pytest.MonkeyPatch, normalizer: normalizers.Normalizer | None = None
) -> tuple[TextTokenizer, list[int]]:
    """The list tells the characters of each text that the tokenizer encodes."""
    tokenizer = byte_tokenizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    found, encoded = TextTokenizer(tokenizer, NONE), list[int]()
    encode = found._encode

    def count(text: str, add_special: bool = False) -> Encoding:
        encoded.append(len(text))
        return encode(text, add_special)

    monkeypatch.setattr(found, "_encode", count)
    return found, encoded


@pytest.mark.parametrize("growth", [1, MAX_GROWTH])
def test_a_text_that_cannot_be_cut_is_refused_before_all_of_it_is_tokenised(
    growth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, eight megabytes of it would take gigabytes of memory; stretched by the normalizer, seventeen."""
    tokenizer, encoded = tokenizer_that_counts(monkeypatch)
    monkeypatch.setattr(tokenizer, "_slice_chars", SLICE_CHARS // growth)
    text = "x" * (40 * SLICE_CHARS)
    for encode in (tokenizer.encode_plain, tokenizer.encode_prompt):
        for around in (tokenizer._around, None):
            encoded.clear()
            monkeypatch.setattr(tokenizer, "_around", around)
            assert encode(text, 2 * SLICE_CHARS) is None
            assert max(encoded) == SLICE_CHARS // growth and sum(encoded) <= 6 * SLICE_CHARS


def test_a_text_that_cannot_be_cut_and_is_not_too_long_is_tokenised_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, encoded = tokenizer_that_counts(monkeypatch)
    text = "xyz" * SLICE_CHARS
    ids = tokenizer.encode_plain(text)
    assert ids is not None and encoded == [len(text)], "without a bound nothing is counted"
    assert tokenizer.encode_plain(text, len(ids)) == ids and encoded[-1] == len(text)


def test_a_tokenizer_that_stretches_texts_reads_them_in_smaller_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, encoded = tokenizer_that_counts(monkeypatch, normalizers.NFKC())
    text = "hello world " * (SLICE_CHARS // 12)
    assert tokenizer.encode_plain(text) == tokenizer._tokenizer.encode(text).ids
    assert max(encoded) < 1.1 * SLICE_CHARS / MAX_GROWTH, "none of them, stretched, is longer than a slice"
