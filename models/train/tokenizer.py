"""Trains the byte-level BPE tokenizer on the generated text, and writes the files that describe it.

Every byte is a token and nothing is normalised, so any text survives encoding and decoding. Digits stand alone.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from models.train import corpus
from models.train.special import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS, TURN_END, TURN_START

_SEED = 1
_NUM_DOCUMENTS = 8000


def train_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer of exactly `vocab_size` tokens: special tokens first, then the 256 bytes, then merges."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (_without_turn_tokens(text) for text in corpus.sample(_SEED, _NUM_DOCUMENTS))
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"vocab_size: got {vocab_size}, but the text only yields {tokenizer.get_vocab_size()} tokens")
    return tokenizer


def _without_turn_tokens(text: str) -> str:
    return text.replace(TURN_START, "").replace(TURN_END, "")


def write_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """tokenizer.json and tokenizer_config.json, the latter with the chat template."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "additional_special_tokens": [TURN_START, TURN_END],
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
