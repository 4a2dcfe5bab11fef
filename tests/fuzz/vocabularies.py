"""Small tokenizers of every kind that models bring: what runs before the merges, and which model makes the tokens."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from gateway.text.tokenizer import SpecialTokens, TextTokenizer, load_tokenizer

STORY: Final = Path(__file__).resolve().parents[2] / "models" / "story"
PRINTABLE: Final = [chr(code) for code in range(33, 127)]
LLAMA: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
KINDS: Final = ("story", "lines", "compatibility", "whole", "pieces", "unigram", "words")


@cache
def tokenizer_of(kind: str) -> TextTokenizer:
    """One of KINDS."""
    if kind == "story":
        bundled = load_tokenizer(STORY)
        assert bundled is not None
        return bundled
    special = SpecialTokens({"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}, None, None)
    return TextTokenizer(library_tokenizer(kind), special)


def library_tokenizer(kind: str) -> Tokenizer:
    """`lines`: Llama 3's pattern. `compatibility`: the same behind NFKC. `whole`: a text is one word. `pieces`:
    SentencePiece's BPE. `unigram`: T5's way. `words`: BERT's."""
    match kind:
        case "pieces":
            return _pieces()
        case "unigram":
            return _unigram()
        case "words":
            return _words()
    tokenizer = Tokenizer.from_file(str(STORY / "tokenizer.json"))
    parts: list[Any] = [] if kind == "whole" else [pre_tokenizers.Split(Regex(LLAMA), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    if kind == "compatibility":
        tokenizer.normalizer = normalizers.NFKC()
    return tokenizer


def _pieces() -> Tokenizer:
    model = json.loads((STORY / "tokenizer.json").read_text())["model"]
    vocabulary = {text: place for place, text in enumerate(["<unk>", *(f"<0x{b:02X}>" for b in range(256))])}
    vocabulary |= {text: 257 + place for place, text in enumerate([*PRINTABLE, "▁"])}
    merges = []
    for pair in (*model["merges"], ("▁", "▁"), ("▁▁", "▁▁"), ("a", "a"), ("aa", "aa")):
        left, right = (part.replace("Ġ", "▁") for part in (pair.split(" ") if isinstance(pair, str) else pair))
        if left in vocabulary and right in vocabulary and left + right not in vocabulary:
            vocabulary[left + right] = len(vocabulary)
            merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _unigram() -> Tokenizer:
    vocabulary = json.loads((STORY / "tokenizer.json").read_text())["model"]["vocab"]
    texts = dict.fromkeys([*(text.replace("Ġ", "▁") for text in vocabulary), *PRINTABLE, "a" * 64])
    scores = [("<unk>", 0.0), *((text, -math.log(place + 2)) for place, text in enumerate(texts))]
    tokenizer = Tokenizer(models.Unigram(scores, 0, False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _words() -> Tokenizer:
    texts = ["[UNK]", "[CLS]", "[SEP]", *PRINTABLE, *(f"##{char}" for char in PRINTABLE)]
    tokenizer = Tokenizer(models.WordPiece({text: place for place, text in enumerate(texts)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer
