"""Model folders without weights, made on the spot: tokenizers, configurations, chat templates."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from runtime.byte_alphabet import byte_alphabet

VOCAB_SIZE = 300
BOS, EOS, END = 256, 257, 258
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer(add_bos: bool = False) -> Tokenizer:
    """Byte-level: the id of a byte is the byte; 256.. are special tokens; 259.. are a few merges."""
    vocab = dict(byte_alphabet())
    merges = [("h", "e"), ("l", "l"), ("Ġ", "w")]
    vocab |= {"".join(pair): 259 + place for place, pair in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab | {"<|bos|>": BOS, "<|eos|>": EOS, "<|end|>": END}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|bos|>", "<|eos|>", "<|end|>")])
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", BOS)])
    return tokenizer


def marked_tokenizer(markers: Iterable[str], *, special: bool = False) -> Tokenizer:
    """Byte-level, with an added token for each of these texts, as Qwen's tokenizers have for `<tool_call>`."""
    tokenizer = byte_tokenizer()
    added = [AddedToken(text, special=special) for text in markers]
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    return tokenizer


def piece_tokenizer() -> Tokenizer:
    """As SentencePiece has it: words with a mark for the space, bytes for what is not in the vocabulary."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocab |= {text: 259 + place for place, text in enumerate(["▁", "▁he", "llo", "▁wor", "ld", "h", "e", "l", "o"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    return tokenizer


def write_folder(
    path: Path,
    tokenizer: Tokenizer | None = None,
    tokenizer_config: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    generation: dict[str, Any] | None = None,
    template: str | None = TEMPLATE,
) -> Path:
    """A model folder as the gateway sees it."""
    path.mkdir(parents=True, exist_ok=True)
    written: dict[str, dict[str, Any]] = {
        "config.json": {"max_position_embeddings": 512, "vocab_size": VOCAB_SIZE, "eos_token_id": EOS} | (config or {}),
    }
    if generation is not None:
        written["generation_config.json"] = generation
    if tokenizer is not None:
        tokenizer.save(str(path / "tokenizer.json"))
        written["tokenizer_config.json"] = {
            "bos_token": "<|bos|>",
            "eos_token": {"content": "<|eos|>", "special": True},
            **({"chat_template": template} if template is not None else {}),
            **(tokenizer_config or {}),
        }
    for name, content in written.items():
        (path / name).write_text(json.dumps(content), encoding="utf-8")
    return path
