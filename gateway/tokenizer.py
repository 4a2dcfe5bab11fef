"""The model's tokenizer: text to ids with the right special tokens, and a detokenizer for each choice.

Reads tokenizer.json and tokenizer_config.json.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from gateway.detokenizer import (
    MAX_CONTEXT_TOKENS,
    ByteDetokenizer,
    Detokenizer,
    TokenBytes,
    WindowDetokenizer,
    is_byte_level,
)
from gateway.text_slices import find_cuts
from protocol.errors import BadRequest, CheckpointError
from runtime.json_fields import read_fields

LENGTH_KEEPING = ("NFC", "NFD")  # normalizers that leave at least a third of a text's characters
SPECIAL_NAMES = "bos_token eos_token unk_token sep_token pad_token cls_token mask_token".split()


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
        self._token_bytes = TokenBytes(tokenizer, self._special_ids) if is_byte_level(tokenizer) else None
        swallows = any(token.lstrip or token.rstrip for token in added.values())
        self._longest = None if swallows or self._token_bytes is None else _longest_token(tokenizer)
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
        for part in [text] if self._cuts is None else self._cuts.slices(text):
            if most is not None and len(ids) > most:
                return None
            ids += self._encode(part)
        return ids

    def encode_prompt(self, text: str, most: int | None = None) -> list[int] | None:
        """Ids of a plain prompt with the special tokens that the model expects around it. BOS is never doubled."""
        if self._around is None:
            ids: list[int] | None = self._encode(text, add_special=True)
        else:
            ids = self.encode_plain(text, most)
            if ids is not None:
                before, after = self._around
                ids = [*before, *ids, *after]
        if ids is not None and self.bos_id is not None and ids[:2] == [self.bos_id, self.bos_id]:
            del ids[0]  # the text itself began with BOS
        return ids

    def _encode(self, text: str, add_special: bool = False) -> list[int]:
        """Encodes and, unlike the library's `encode`, lets other threads run. BadRequest for a word without tokens."""
        try:
            [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special)
        except Exception as error:  # the library raises bare Exception
            raise BadRequest(f"the model's tokenizer cannot encode the text: {str(error)[:300]}") from error
        return encoding.ids

    def _special_around(self) -> tuple[list[int], list[int]] | None:
        """The ids before and after a prompt; None if an example cannot show what the post-processor adds."""
        special = self.special
        if special.add_bos is not None or special.add_eos is not None:
            before = [self.bos_id] if special.add_bos and self.bos_id is not None else []
            return before, [self.eos_id] if special.add_eos and self.eos_id is not None else []

        try:
            ids, whole = self._encode("a"), self._encode("a", add_special=True)
        except BadRequest:
            return None
        places = [at for at in range(len(whole)) if ids and whole[at : at + len(ids)] == ids]
        return (whole[: places[0]], whole[places[0] + len(ids) :]) if len(places) == 1 else None

    def detokenizer(self, prompt_ids: Sequence[int], skip_special: bool) -> Detokenizer:
        """A detokenizer for one choice of this prompt."""
        context = prompt_ids[-MAX_CONTEXT_TOKENS:]
        if self._token_bytes is not None:
            return ByteDetokenizer(self._token_bytes, context, skip_special)
        return WindowDetokenizer(self._tokenizer, self._special_ids, context, skip_special)

    def _id_of(self, name: str) -> int | None:
        text = self.special.texts.get(name)
        return None if text is None else self._tokenizer.token_to_id(text)


def _longest_token(tokenizer: Tokenizer) -> int | None:
    """The most characters that one token can stand for; None if a normalizer may drop any number of them."""
    normalizer = tokenizer.normalizer
    if normalizer is not None and type(normalizer).__name__ not in LENGTH_KEEPING:
        return None
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
    return longest if normalizer is None else 3 * longest


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
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None
