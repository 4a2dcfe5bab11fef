import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Encoding, Tokenizer, models, normalizers, processors

from gateway.text.text_lengths import MAX_GROWTH
from gateway.text.tokenizer import SLICE_CHARS, SpecialTokens, TextTokenizer, load_tokenizer
from protocol.errors import BadRequest, CheckpointError
from tests.gateway.folders import BOS, EOS, byte_tokenizer, piece_tokenizer, write_folder

NONE = SpecialTokens({}, None, None)


def load(path: Path, add_bos: bool = False, **config: Any) -> TextTokenizer:
    found = load_tokenizer(write_folder(path, byte_tokenizer(add_bos), config))
    assert found is not None
    return found


def test_no_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(write_folder(tmp_path)) is None


def test_damaged_tokenizer(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("configured", [None, False, True])
def test_bos_as_configured_else_as_the_file_says(tmp_path: Path, in_file: bool, configured: bool | None) -> None:
    config = {} if configured is None else {"add_bos_token": configured}
    tokenizer = load(tmp_path, in_file, **config)
    expected = in_file if configured is None else configured
    assert tokenizer.encode_prompt("Hi") == [*([BOS] if expected else []), 72, 105]
    assert tokenizer.encode_plain("Hi") == [72, 105]


@pytest.mark.parametrize("configured", [None, True])
def test_bos_never_twice(tmp_path: Path, configured: bool | None) -> None:
    tokenizer = load(tmp_path, True, add_bos_token=configured)
    assert tokenizer.encode_prompt("<|bos|>Hi") == [BOS, 72, 105]


def test_eos_when_configured(tmp_path: Path) -> None:
    assert load(tmp_path, add_eos_token=True).encode_prompt("Hi") == [72, 105, EOS]


def test_special_tokens_as_text(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, extra_special_tokens={"image_token": "<|img|>"}, pad_token=None)
    texts = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "image_token": "<|img|>"}
    assert tokenizer.special.texts == texts
    assert (tokenizer.bos_id, tokenizer.eos_id) == (BOS, EOS)


def test_older_special_tokens_map(tmp_path: Path) -> None:
    write_folder(tmp_path, byte_tokenizer(), {"bos_token": None})
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<|bos|>"}}))
    found = load_tokenizer(tmp_path)
    assert found is not None and found.bos_id == BOS


def test_a_wrong_flag_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="add_bos_token: got 'yes'"):
        load(tmp_path, add_bos_token="yes")


def test_truncation_in_the_file_is_ignored(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    found = load_tokenizer(write_folder(tmp_path, tokenizer))
    assert found is not None and found.encode_prompt("abcdef") == list(b"abcdef")


@pytest.mark.slow
@pytest.mark.parametrize(("in_file", "add_bos"), [(False, None), (True, None), (False, False), (True, True)])
def test_agrees_with_transformers(tmp_path: Path, in_file: bool, add_bos: bool | None) -> None:
    """Where tokenizer.json and tokenizer_config.json contradict each other, versions of transformers differ."""
    from transformers import AutoTokenizer  # noqa: PLC0415  # takes seconds

    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|eos|>"}
    if add_bos is not None:
        config["add_bos_token"] = add_bos
    ours = load(tmp_path, in_file, **config)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("hello world", "naïve 🙂"):
        assert ours.encode_prompt(text) == theirs(text)["input_ids"]


def test_what_the_length_of_a_text_tells(tmp_path: Path) -> None:
    assert load(tmp_path).least_tokens("x" * 70) == 10  # the longest token is <|bos|>
    tokenizer = byte_tokenizer()
    tokenizer.normalizer = normalizers.NFC()
    assert TextTokenizer(tokenizer, NONE).least_tokens("x" * 280) == 10
    text = "e\u0301" * 7 + "<|bos|>" * 9
    assert TextTokenizer(tokenizer, NONE).least_tokens(text) <= len(tokenizer.encode(text).ids)
    tokenizer.normalizer = normalizers.Strip()
    assert TextTokenizer(tokenizer, NONE).least_tokens("x" * 70) == 0
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    assert TextTokenizer(tokenizer, NONE).least_tokens("x" * 70) == 0
    assert TextTokenizer(piece_tokenizer(), NONE).least_tokens("x" * 70) == 0


def that_counts(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer | None = None) -> tuple[TextTokenizer, list[int]]:
    """By default the bundled tokenizer; the list tells the characters of each text that it encodes."""
    found = load_tokenizer(Path("models/story")) if tokenizer is None else TextTokenizer(tokenizer, NONE)
    assert found is not None
    encoded, encode = list[int](), found._encode

    def count(text: str, add_special: bool = False) -> Encoding:
        encoded.append(len(text))
        return encode(text, add_special)

    monkeypatch.setattr(found, "_encode", count)
    return found, encoded


def test_encoding_stops_soon_after_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, encoded = that_counts(monkeypatch)
    text = "once upon a time " * (20 * SLICE_CHARS // 17)
    assert tokenizer.encode_plain(text, 100) is None and tokenizer.encode_prompt(text, 100) is None
    assert len(encoded) == 2 and sum(encoded) < 2.1 * SLICE_CHARS < len(text)


def test_a_text_within_the_bound_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """By tokens, not by characters: one token may stand for very many."""
    tokenizer, encoded = that_counts(monkeypatch)
    text = "once upon a time " * (3 * SLICE_CHARS // 17)
    ids = tokenizer.encode_plain(text)
    assert ids is not None and len(encoded) == 3 and sum(encoded) == len(text)
    assert tokenizer.encode_plain(text, len(ids)) == tokenizer.encode_prompt(text, len(ids)) == ids
    assert max(encoded) < 1.1 * SLICE_CHARS


@pytest.mark.parametrize("growth", [1, MAX_GROWTH])
def test_a_text_that_cannot_be_cut_is_refused_before_all_of_it_is_tokenised(
    growth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, eight megabytes of it would take gigabytes of memory; stretched by the normalizer, seventeen."""
    tokenizer, encoded = that_counts(monkeypatch, byte_tokenizer())
    monkeypatch.setattr(tokenizer, "_slice_chars", SLICE_CHARS // growth)
    text = "x" * (40 * SLICE_CHARS)
    for encode in (tokenizer.encode_plain, tokenizer.encode_prompt):
        for around in (tokenizer._around, None):
            encoded.clear()
            monkeypatch.setattr(tokenizer, "_around", around)
            assert encode(text, 2 * SLICE_CHARS) is None
            assert max(encoded) == SLICE_CHARS // growth and sum(encoded) <= 6 * SLICE_CHARS


def test_a_text_that_cannot_be_cut_and_is_not_too_long_is_tokenised_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, encoded = that_counts(monkeypatch, byte_tokenizer())
    text = "xyz" * SLICE_CHARS
    ids = tokenizer.encode_plain(text)
    assert ids is not None and encoded == [len(text)], "without a bound nothing is counted"
    assert tokenizer.encode_plain(text, len(ids)) == ids and encoded[-1] == len(text)


def test_a_tokenizer_that_stretches_texts_reads_them_in_smaller_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    stretching = byte_tokenizer()
    stretching.normalizer = normalizers.NFKC()
    tokenizer, encoded = that_counts(monkeypatch, stretching)
    text = "hello world " * (SLICE_CHARS // 12)
    assert tokenizer.encode_plain(text) == tokenizer._tokenizer.encode(text).ids
    assert max(encoded) < 1.1 * SLICE_CHARS / MAX_GROWTH, "none of them, stretched, is longer than a slice"


def test_a_thread_runs_while_another_encodes() -> None:
    """The interpreter changes threads only where one gives way: with such an interval nothing takes it away."""
    tokenizer = load_tokenizer(Path("models/story"))
    assert tokenizer is not None
    asked, has_run, before = threading.Event(), threading.Event(), sys.getswitchinterval()

    def other() -> None:
        asked.wait()
        has_run.set()

    thread = threading.Thread(target=other)
    thread.start()
    text = "once upon a time " * 2000
    sys.setswitchinterval(1000)
    try:
        asked.set()
        for _ in range(100):  # the system may be slow to start the thread
            tokenizer.encode_plain(text)
            ran = has_run.is_set()
            if ran:
                break
    finally:
        sys.setswitchinterval(before)
    thread.join()
    assert ran


@pytest.mark.parametrize(
    ("single", "ids"),
    [
        ("$A", [72, 105]),
        ("<|bos|> $A", [BOS, 72, 105]),
        ("<|bos|> $A <|eos|> <|eos|>", [BOS, 72, 105, EOS, EOS]),
        ("$A <|bos|> $A", [72, 105, BOS, 72, 105]),
    ],
)
def test_what_the_post_processor_puts_around_a_prompt(single: str, ids: list[int]) -> None:
    tokenizer = byte_tokenizer()
    special = [("<|bos|>", BOS), ("<|eos|>", EOS)]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    assert TextTokenizer(tokenizer, NONE).encode_prompt("Hi") == tokenizer.encode("Hi").ids == ids


def test_a_word_that_the_vocabulary_lacks() -> None:
    tokenizer = Tokenizer(models.WordLevel({"hello": 0}, unk_token="<unk>"))
    found = TextTokenizer(tokenizer, NONE)
    assert found.encode_prompt("hello") == found.encode_plain("hello") == [0]
    with pytest.raises(BadRequest, match="tokenizer cannot encode the text"):
        found.encode_prompt("world")


def test_bytes_of_tokens_between_others(tmp_path: Path) -> None:
    by_bytes, by_pieces = load(tmp_path / "bytes"), load_tokenizer(write_folder(tmp_path / "pieces", piece_tokenizer()))
    assert by_pieces is not None
    assert [by_bytes.bytes_of(each) for each in (0xC3, 259, 261, EOS)] == [b"\xc3", b"he", b" w", b"<|eos|>"]
    assert [by_pieces.bytes_of(each) for each in (3 + 0xC3, 259, 260, 263, 2)] == [
        b"\xc3",
        b" ",
        b" he",
        b"ld",
        b"</s>",
    ]
    assert by_bytes.bytes_of(299) is None and by_pieces.bytes_of(5000) is None
