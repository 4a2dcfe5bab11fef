"""A tokenizer counts what the endpoint does not tell."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from loadtest.drive.events import Heard
from loadtest.drive.recount import load_tokenizer, recounted
from loadtest.figures.record import Counting
from protocol.errors import ConfigError
from tests.loadtest.records import recorded


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    made = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = WhitespaceSplit()
    made.save(str(tmp_path / "tokenizer.json"))
    return load_tokenizer(str(tmp_path))


def heard(*texts: str) -> Heard:
    answer = Heard(0.0, keeps=True)
    answer.texts = list(texts)
    return answer


def test_a_token_comes_with_its_last_character(tokenizer: Tokenizer) -> None:
    """Five events: two tokens in the second, none whole in the first and the fourth."""
    record = recorded(0.0, [1.0, 2.0, 3.0, 4.0, 5.0], [1] * 5, counting=Counting.CHUNKS)
    counted = recounted(record, heard("on", "e two", " three", " fo", "ur"), tokenizer)
    assert (list(counted.arrivals), list(counted.counts)) == ([2.0, 3.0, 5.0], [2, 1, 1])
    assert counted.counting is Counting.TOKENIZER


def test_what_the_endpoint_counted_stays(tokenizer: Tokenizer) -> None:
    record = recorded(0.0, [1.0], [3], counting=Counting.IDS)
    assert recounted(record, heard("one"), tokenizer) is record


def test_no_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--tokenizer: cannot read "):
        load_tokenizer(str(tmp_path))
