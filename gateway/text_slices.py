"""Cuts a long text into slices whose tokens, one after another, are exactly the tokens of the whole text.

A cut lies before a space that follows another character, or after a line break that a letter or digit follows. The
tokenizer's own description must prove that such a cut changes nothing (`find_cuts`): no added token is near, and either
the pre-tokenizer always splits there or no token of the vocabulary crosses the cut. Otherwise the text stays whole.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tokenizers import Tokenizer, models

SLICE_CHARS = 64 * 1024
STRIDE_CHARS = 64 * 1024  # in each stride, at most MAX_TRIES places are tried
MAX_TRIES = 8
NEAR_CHARS = 2

# Normalizers that change a character regardless of a space beside it. The NEUTRAL ones do nothing else. NFKC and NFKD
# may turn a character into text that begins with a space. BertNormalizer may also remove characters.
NEUTRAL = frozenset("NFC NFD Lowercase".split())
NEUTRAL_AT_SPACES = NEUTRAL | {"NFKC", "NFKD"}
LOCAL_NORMALIZERS = NEUTRAL_AT_SPACES | {"BertNormalizer"}
# Pre-tokenizers that split at every space.
SPLIT_AT_SPACES = frozenset("Whitespace WhitespaceSplit BertPreTokenizer".split())
APART = ("Isolated", "Removed", "Contiguous")  # behaviours that join nothing with its neighbour
# Alternatives of regular expressions that are safe to cut at. None matches a space after another character, or a letter
# or digit after a line break, and none looks behind. With `\s+` among them, every space and line break is matched.
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SAFE_ALTERNATIVES = (
    [*"'s 't 're 've 'm 'll 'd".split(), _CONTRACTION]
    + [r" ?\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"]
    + [r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+", r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"]
    + [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}{a}{_LOWER}{b}{end}"
        for a, b in ("*+", "+*")
        for end in ("", _CONTRACTION + "?")
    ]
    + [r"\p{N}", r" ?\p{N}+", r"\p{N}{1,3}", "[0-9][0-9][0-9]", "[一-龥぀-ゟ゠-ヿ]+"]
    + [
        rf" ?[^\s{kinds}]+{end}"
        for kinds in (r"\p{L}\p{N}", r"\p{L}\p{M}\p{N}")
        for end in ("", r"[\r\n]*", r"[\r\n/]*")
    ]
    + [r" ?[\p{P}\p{S}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]
)
SAFE = "|".join(map(re.escape, SAFE_ALTERNATIVES))
SAFE_PATTERN = re.compile(rf"(?:{SAFE})(?:\|(?:{SAFE}))*")  # a regular expression of such alternatives alone
AT_SPACE = r"(?<=\S)(?= \S)"
AT_LINE = r"(?<=\S\n)(?=[^\W_])"


@dataclass(frozen=True)
class Cuts:
    """Where texts may be cut. `drops_space`: leave out the space at the cut, since the normalizer adds it again."""

    places: re.Pattern[str]
    drops_space: bool
    not_after: frozenset[str]  # characters that some token joins with a following space
    space: str  # what the normalizer turns a space into
    added: tuple[str, ...]  # added tokens, which must not be near a cut

    def slices(self, text: str, size: int = SLICE_CHARS) -> Iterator[str]:
        """The text in slices of about `size` characters, in order. A slice is longer where no cut is possible."""
        start = 0
        while len(text) - start > size:
            cut = self._next(text, start + size)
            if cut is None:
                break
            yield text[start:cut]
            start = cut + self.drops_space
        yield text[start:]

    def _next(self, text: str, at: int) -> int | None:
        """The next cut. Few places are tried, so that a text full of added tokens is not searched for long."""
        for begin in range(at, len(text), STRIDE_CHARS):
            found = self.places.finditer(text, begin, begin + STRIDE_CHARS)
            for match in islice(found, MAX_TRIES):
                if self._is_exact(text, match.start()):
                    return match.start()
        return None

    def _is_exact(self, text: str, cut: int) -> bool:
        if text[cut - 1] in self.not_after:
            return False
        reach = max(map(len, self.added), default=0) + NEAR_CHARS
        near = text[max(0, cut - reach) : cut + reach].replace(" ", self.space)
        return not any(token in near for token in self.added)


def find_cuts(tokenizer: Tokenizer) -> Cuts | None:
    """Where texts for this tokenizer may be cut; None if no place is proven safe."""
    added = tokenizer.get_added_tokens_decoder().values()
    normalizing = _read_normalizer(_parts(tokenizer.normalizer, "normalizers"))
    if normalizing is None:
        return None
    space, drops_space, kinds = normalizing
    if kinds and any(each.normalized for each in added):
        return None  # they may also be spelt in other ways

    splitting = _read_pre_tokenizer(_parts(tokenizer.pre_tokenizer, "pretokenizers"), space, kinds)
    if splitting is None:
        return None
    space, splits, at_lines = splitting
    joined = frozenset({space}) if splits else None if kinds else _joined(tokenizer, space)
    if joined is None:
        return None

    places = re.compile(f"{AT_SPACE}|{AT_LINE}" if at_lines and not drops_space else AT_SPACE)
    return Cuts(places, drops_space, joined, space, tuple(each.content.replace(" ", space) for each in added))


def _parts(component: Any, name: str) -> list[dict[str, Any]]:
    """The description of a normalizer or pre-tokenizer, with sequences flattened."""

    def flat(spec: dict[str, Any]) -> list[dict[str, Any]]:
        return [part for each in spec[name] for part in flat(each)] if spec["type"] == "Sequence" else [spec]

    return [] if component is None else flat(json.loads(component.__getstate__()))


def _read_normalizer(parts: list[dict[str, Any]]) -> tuple[str, bool, frozenset[str]] | None:
    """(what a space becomes, whether a space is put before each text, the other normalizers)."""
    space, prepended, kinds = " ", "", set[str]()
    for part in parts:
        if part["type"] == "Replace" and part["pattern"] == {"String": " "} and len(part["content"]) == 1:
            space = part["content"]
        elif part["type"] == "Prepend":
            prepended = part["prepend"]
        elif part["type"] in LOCAL_NORMALIZERS:
            kinds.add(part["type"])
        else:
            return None
    return (space, bool(prepended), frozenset(kinds)) if prepended in ("", space) else None


def _read_pre_tokenizer(
    parts: list[dict[str, Any]], space: str, normalizers: frozenset[str]
) -> tuple[str, bool, bool] | None:
    """(what a space becomes, whether texts are split at each space, whether they are split after lines too)."""
    for part in parts:
        kind = part["type"]

        if kind == "Metaspace":
            return (part["replacement"], part["split"], False) if space in (" ", part["replacement"]) else None
        if kind == "Digits" or (kind == "Punctuation" and part["behavior"] in APART):
            continue

        if kind == "Split" and space != " " and part["pattern"] == {"String": " "}:
            continue  # the text has no spaces any more
        if space != " ":
            return None

        if kind in SPLIT_AT_SPACES:
            return " ", True, False
        if not normalizers <= NEUTRAL_AT_SPACES:
            return None
        at_lines = normalizers <= NEUTRAL and not any(each.get("add_prefix_space") for each in parts)

        if kind == "ByteLevel":
            return (" ", True, at_lines) if part["use_regex"] else None
        pattern = _isolated(part) if kind == "Split" else ""
        if not SAFE_PATTERN.fullmatch(pattern):
            return None
        if r"\s+" in pattern.split("|"):
            return " ", True, at_lines
    return space, False, False


def _isolated(split: dict[str, Any]) -> str:
    """The regular expression that splits the text; empty if there is none, or if matches join their neighbours."""
    if (split["behavior"], split["invert"]) not in (("Isolated", False), ("Removed", True)):
        return ""
    return str(split["pattern"].get("Regex", "")).replace("\r", r"\r").replace("\n", r"\n")


def _joined(tokenizer: Tokenizer, space: str) -> frozenset[str] | None:
    """Characters that some token has before a space. None unless merges of the vocabulary alone make the tokens.

    If no token crosses a place, the merges on its two sides are independent.
    """
    model = tokenizer.model
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if not isinstance(model, models.BPE) or space not in vocabulary or model.ignore_merges:
        return None
    if model.continuing_subword_prefix or model.end_of_word_suffix or model.dropout:
        return None
    return frozenset(
        {space, *(before for token in vocabulary for before in re.findall(f"(.){re.escape(space)}", token, re.DOTALL))}
    )
