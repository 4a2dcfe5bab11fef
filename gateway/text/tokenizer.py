"""The model's tokenizer: text to ids with the right special tokens, and a detokenizer for each choice.

Reads tokenizer.json and tokenizer_config.json. A long text is cut into slices whose tokens, one after another, are
exactly the tokens of the whole. A cut lies before a space that follows another character, or after a line break that a
letter or digit follows. The tokenizer's own description must prove that such a cut changes nothing (`find_cuts`): no
added token is near, and either the pre-tokenizer always splits there or no token of the vocabulary crosses the cut.
Otherwise the text stays whole.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer, models

from gateway.text.detokenizer import (
    MAX_CONTEXT_TOKENS,
    ByteDetokenizer,
    Detokenizer,
    TokenBytes,
    WindowDetokenizer,
)
from gateway.text.plain_marks import MARK
from gateway.text.text_lengths import growth_of, longest_token, parts_of
from protocol.errors import BadRequest, CheckpointError
from runtime.byte_alphabet import BYTE_TOKEN, is_byte_level
from runtime.files import read_fields

BEHIND = "\n"  # no letter or digit behind it becomes a token with it
NOTHING_AROUND: tuple[list[int], list[int]] = [], []
SPECIAL_NAMES = "bos_token eos_token unk_token sep_token pad_token cls_token mask_token".split()
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
class SpecialTokens:
    """Special tokens as text, by the names that templates use, and which of them go around a plain prompt.

    `add_bos` and `add_eos` are None if tokenizer_config.json does not set them. Then tokenizer.json decides.
    """

    texts: dict[str, str]
    add_bos: bool | None
    add_eos: bool | None


class TextTokenizer:
    """A model's tokenizer. Several threads may encode at once, and other threads run Python meanwhile.

    Methods that take `most` return None instead of ids once they have read more than `most` tokens.
    """

    def __init__(self, tokenizer: Tokenizer, special: SpecialTokens) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.special = special
        added = tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._added_ids = {token.content: token_id for token_id, token in added.items()}
        self.special_texts = tuple(token.content for token in added.values() if token.special)
        self._token_bytes = None
        if is_byte_level(tokenizer):
            self._token_bytes = {skip: TokenBytes(tokenizer, self._skipped(skip)) for skip in (False, True)}
        swallows = any(token.lstrip or token.rstrip for token in added.values())
        self._longest = None if swallows or self._token_bytes is None else longest_token(tokenizer)
        self.growth = growth_of(tokenizer)
        self._slice_chars = SLICE_CHARS // self.growth
        self.bos_id = self._id_of("bos_token")
        self.eos_id = self._id_of("eos_token")
        self._cuts = find_cuts(tokenizer)
        self._around = self._special_around()

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def least_tokens(self, text: str) -> int:
        """A lower bound of the tokens of `text`, from its length alone; 0 if its length tells nothing."""
        return 0 if self._longest is None else len(text) // self._longest

    def encode_plain(self, text: str, most: int | None = None) -> list[int] | None:
        """Ids of a text that has its own special tokens, such as a rendered chat template."""
        ids: list[int] = []
        for part in [text] if self._cuts is None else self._cuts.slices(text, self._slice_chars):
            if most is not None and (len(ids) > most or self._is_beyond(part, most)):
                return None
            encoding = self._encode(part)
            if most is not None and len(encoding) > most + SLICE_CHARS:
                return None  # no list of millions of ids, which would keep other threads from running
            ids += encoding.ids
        return ids

    def encode_prompt(self, text: str, most: int | None = None) -> list[int] | None:
        """Ids of a plain prompt with the special tokens that the model expects around it. BOS is never doubled."""
        if self._around is None:
            is_beyond = most is not None and self._is_beyond(text, most)
            ids = None if is_beyond else self._encode(text, add_special=True).ids
        else:
            ids = self.encode_plain(text, most)
            if ids is not None:
                before, after = self._around
                ids = [*before, *ids, *after]
        if ids is not None and self.bos_id is not None and ids[:2] == [self.bos_id, self.bos_id]:
            del ids[0]  # the text itself began with BOS
        return ids

    def encode_rendered(self, text: str, most: int | None = None, *, add_special: bool = False) -> list[int] | None:
        """Ids of a rendered conversation, in whose marks (plain_marks.py) no special token is."""
        first, *others = text.split(MARK)
        if not others:
            return self.encode_prompt(text, most) if add_special else self.encode_plain(text, most)

        before, after = (self._around or NOTHING_AROUND) if add_special else NOTHING_AROUND
        ids = self.encode_plain(first, most)
        known: dict[str, list[int] | None] = {}  # a hostile text has the same part again and again
        for part in others:
            if part not in known:
                known[part] = self._encode_behind(part, most)
            behind = known[part]
            if ids is None or behind is None or (most is not None and len(ids) > most):
                return None
            ids += behind
        return None if ids is None else [*before, *ids, *after]

    def _encode_behind(self, text: str, most: int | None) -> list[int] | None:
        """Ids of a text that goes on behind another one: a tokenizer that begins each text with a space adds none."""
        lead, both = self._encode(BEHIND).ids, self.encode_plain(BEHIND + text, most)
        if both is None or both[: len(lead)] == lead:
            return both and both[len(lead) :]
        return self.encode_plain(text, most)

    def _is_beyond(self, text: str, most: int) -> bool:
        """Whether a text that cannot be cut has far more than `most` tokens: whole, it could take gigabytes. Counts
        those of its pieces, which differ from its own near each place of a cut."""
        size = self._slice_chars
        if len(text) <= 2 * size:
            return False
        counts = (len(self._encode(text[begin : begin + size])) for begin in range(0, len(text), size))
        return any(count > 2 * most + SLICE_CHARS for count in accumulate(counts))

    def _encode(self, text: str, add_special: bool = False) -> Encoding:
        """Encodes and, unlike the library's `encode`, lets other threads run. BadRequest for a word without tokens."""
        try:
            [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special)
        except Exception as error:  # the library raises bare Exception
            raise BadRequest(f"the model's tokenizer cannot encode the text: {str(error)[:300]}") from error
        return encoding

    def _special_around(self) -> tuple[list[int], list[int]] | None:
        """The ids before and after a prompt; None if an example cannot show what the post-processor adds."""
        special = self.special
        if special.add_bos is not None or special.add_eos is not None:
            before = [self.bos_id] if special.add_bos and self.bos_id is not None else []
            return before, [self.eos_id] if special.add_eos and self.eos_id is not None else []

        try:
            ids, whole = self._encode("a").ids, self._encode("a", add_special=True).ids
        except BadRequest:
            return None
        places = [at for at in range(len(whole)) if ids and whole[at : at + len(ids)] == ids]
        return (whole[: places[0]], whole[places[0] + len(ids) :]) if len(places) == 1 else None

    def detokenizer(self, prompt_ids: Sequence[int], skip_special: bool) -> Detokenizer:
        """A detokenizer for one choice of this prompt."""
        context = prompt_ids[-MAX_CONTEXT_TOKENS:]
        if self._token_bytes is not None:
            return ByteDetokenizer(self._token_bytes[skip_special], context)
        return WindowDetokenizer(self._tokenizer, self._skipped(skip_special), context)

    def bytes_of(self, token_id: int) -> bytes | None:
        """The bytes of one token as it is between others, special tokens as they are spelt; None for an unknown id."""
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return None
        if self._token_bytes is not None:
            return self._token_bytes[False][token_id]
        if (byte := BYTE_TOKEN.fullmatch(token)) is not None:
            return bytes.fromhex(byte[1])
        once, twice = (self._tokenizer.decode([token_id] * times, skip_special_tokens=False) for times in (1, 2))
        return twice[len(once) :].encode()  # the first token of a text may lack its space

    def added_id(self, text: str) -> int | None:
        """The id of the added token with this text, which nothing else in a text becomes; None: there is none."""
        return self._added_ids.get(text)

    def name_of(self, token_id: int) -> str:
        """A token as the vocabulary spells it; "" for an unknown id."""
        return self._tokenizer.id_to_token(token_id) or ""

    def _skipped(self, skip_special: bool) -> frozenset[int]:
        return self._special_ids if skip_special else frozenset()

    def _id_of(self, name: str) -> int | None:
        text = self.special.texts.get(name)
        return None if text is None else self._tokenizer.token_to_id(text)


def load_tokenizer(folder: Path) -> TextTokenizer | None:
    """The folder's tokenizer, or None if it has none. CheckpointError if it is damaged."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    if not path.is_file():
        raise CheckpointError("tokenizer.json: not a file")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"tokenizer.json: {str(error)[:300]}") from error
    return TextTokenizer(tokenizer, read_special_tokens(folder))


def read_special_tokens(folder: Path) -> SpecialTokens:
    """Reads tokenizer_config.json and the older special_tokens_map.json."""
    config = read_fields(folder / "tokenizer_config.json", optional=True)
    older = read_fields(folder / "special_tokens_map.json", optional=True)
    named = {**older.values, **{name: value for name, value in config.values.items() if value is not None}}

    extra = config.values.get("extra_special_tokens")
    if isinstance(extra, dict):
        named = {**extra, **named}
        names = [*SPECIAL_NAMES, *extra]
    else:
        names = SPECIAL_NAMES

    texts = {name: text for name in names if (text := _text(named.get(name))) is not None}
    add_bos, add_eos = (
        config.boolean(name) if config.has(name) else None for name in ("add_bos_token", "add_eos_token")
    )
    return SpecialTokens(texts, add_bos, add_eos)


def _text(value: Any) -> str | None:
    """A token's text. Files give it as text or as an object with `content`."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


# ---- slices of a long text ----


@dataclass(frozen=True)
class Cuts:
    """The rule by which texts are cut.

    `drops_space`: the slice after a cut begins without its space, because the normalizer adds the space again."""

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
            matches = self.places.finditer(text, begin, begin + STRIDE_CHARS)
            for match in islice(matches, MAX_TRIES):
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
    """Returns the rule by which texts for this tokenizer may be cut, or None if no place is proven safe."""
    added = tokenizer.get_added_tokens_decoder().values()
    normalizing = _read_normalizer(parts_of(tokenizer.normalizer, "normalizers"))
    if normalizing is None:
        return None
    space, drops_space, kinds = normalizing
    if kinds and any(token.normalized for token in added):
        return None  # they may also be spelt in other ways

    splitting = _read_pre_tokenizer(parts_of(tokenizer.pre_tokenizer, "pretokenizers"), space, kinds)
    if splitting is None:
        return None
    space, splits, at_lines = splitting
    joined = frozenset({space}) if splits else None if kinds else _joined(tokenizer, space)
    if joined is None:
        return None

    places = re.compile(f"{AT_SPACE}|{AT_LINE}" if at_lines and not drops_space else AT_SPACE)
    return Cuts(places, drops_space, joined, space, tuple(token.content.replace(" ", space) for token in added))


def _read_normalizer(parts: list[dict[str, Any]]) -> tuple[str, bool, frozenset[str]] | None:
    """(what a space becomes, whether a space is put before each text, other normalizers). None: a cut may change it."""
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
    if prepended not in ("", space):  # it could not be dropped at a cut
        return None
    return space, bool(prepended), frozenset(kinds)


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
        at_lines = normalizers <= NEUTRAL and not any(part.get("add_prefix_space") for part in parts)

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
