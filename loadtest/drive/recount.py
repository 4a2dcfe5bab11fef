"""Counts the tokens of answers by a tokenizer, once the run is over. Pure, but for the tokenizer's own code."""

from array import array
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from loadtest.drive.events import Heard
from loadtest.figures.record import Counting, Record
from protocol.errors import ConfigError, brief

_CERTAIN = (Counting.IDS, Counting.CONTINUOUS)


def load_tokenizer(path: str) -> Tokenizer:
    """The tokenizer of a model's folder, or of a tokenizer.json. ConfigError if it cannot be read."""
    file = Path(path).expanduser()
    file = file / "tokenizer.json" if file.is_dir() else file
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"--tokenizer: cannot read {brief(str(file))}: {error}", param="tokenizer") from error


def recounted(record: Record, heard: Heard, tokenizer: Tokenizer) -> Record:
    """The record with its tokens counted by the text. A token has come when its last character has.

    Records whose tokens the server has counted stay as they are.
    """
    if record.counting in _CERTAIN or len(heard.texts) != len(record.arrivals) or not heard.texts:
        return record

    ends = list(accumulate(len(text) for text in heard.texts))
    encoding = tokenizer.encode("".join(heard.texts), add_special_tokens=False)
    events = np.searchsorted(ends, [end for _, end in encoding.offsets], side="left")
    counts = np.bincount(np.minimum(events, len(ends) - 1), minlength=len(ends))
    has_token = counts > 0  # an event may have a part of a token only
    return replace(
        record,
        arrivals=array("d", np.asarray(record.arrivals)[has_token].tolist()),
        counts=array("l", counts[has_token].tolist()),
        counting=Counting.TOKENIZER,
    )
