"""The committed model: small, loadable by transformers, sensible at once, and made by the recipe beside it."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer

from models.train.arithmetic import Sum
from models.train.conversations import Message
from models.train.measure import Loaded, load, share_of_good_json, share_of_right_sums
from models.train.recipe import Shape
from models.train.special import SPECIAL_TOKENS
from models.train.tokenizer import train_tokenizer
from models.train.train import STORY_FOLDER

REPOSITORY = STORY_FOLDER.parents[1]
REFERENCE = STORY_FOLDER.parent / "train" / "check.json"


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(STORY_FOLDER)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(STORY_FOLDER / "tokenizer.json"))


def chat(loaded: Loaded, *messages: Message) -> str:
    return loaded.text(loaded.complete([loaded.chat_ids(messages)])[0])


def test_folder_is_at_most_six_megabytes() -> None:
    """The model, and 2 MB of draft layers at most."""
    files = {path.name: path.stat().st_size for path in STORY_FOLDER.iterdir()}
    assert set(files) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(files.values()) <= 6_000_000


def test_weights_are_bfloat16_and_tied() -> None:
    with safe_open(STORY_FOLDER / "model.safetensors", framework="pt") as weights:
        names = list(weights.keys())
        assert "lm_head.weight" not in names
        assert "model.embed_tokens.weight" in names
        assert all(weights.get_tensor(name).dtype == torch.bfloat16 for name in names)
        assert all(bool(weights.get_tensor(name).isfinite().all()) for name in names)


def test_special_tokens_come_first(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]
    assert tokenizer.get_vocab_size() == Shape().vocab_size


@given(st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(STORY_FOLDER / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text", ["Zoë's café", "狐狸", "🦊👩‍👩‍👧", "a\r\n\tb  c ", " 12 + 345=", "e\u0301 \u00e9 \ufeff\x00"]
)
@pytest.mark.slow
def test_unusual_text_survives_the_tokenizer_of_transformers(loaded: Loaded, text: str) -> None:
    ids = loaded.tokenizer.encode(text)
    assert loaded.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


@pytest.mark.slow
def test_transformers_and_tokenizers_agree_on_a_conversation(loaded: Loaded, tokenizer: Tokenizer) -> None:
    text = "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n"
    assert loaded.chat_ids([Message("user", "What is 3 + 4?")]) == tokenizer.encode(text).ids
    assert (
        tokenizer.encode("Once").ids == tokenizer.encode("Once", add_special_tokens=False).ids
    )  # nothing is put in front


@pytest.mark.slow
def test_chat_template_takes_roles_and_parts(loaded: Loaded) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
        {"role": "assistant", "content": "Hi"},
    ]
    text = loaded.tokenizer.apply_chat_template(turns, tokenize=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi<|im_end|>\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["Once upon a time", "Long ago, there was a fox"])
def test_greedy_story_is_sentences_and_ends(loaded: Loaded, prompt: str) -> None:
    ids = loaded.complete([loaded.text_ids(prompt)])[0]
    text = loaded.text(ids)
    assert loaded.ends(ids[-1])
    assert text.count(".") >= 4
    assert len(text.split()) >= 40


@pytest.mark.slow
def test_story_is_about_what_was_asked_for(loaded: Loaded) -> None:
    ids = loaded.complete([loaded.chat_ids([Message("user", "Tell me a story about a fox")])])[0]
    assert "fox" in loaded.text(ids)
    assert loaded.ends(ids[-1])


@pytest.mark.slow
def test_sums_are_right(loaded: Loaded) -> None:
    sums = [Sum(left, "+", right) for left in range(0, 10, 2) for right in range(1, 10, 2)]
    assert share_of_right_sums(loaded, sums) >= 0.9
    assert chat(loaded, Message("user", "What is 3 + 4?")) == "3 + 4 = 7."


@pytest.mark.slow
def test_json_parses(loaded: Loaded) -> None:
    person = json.loads(chat(loaded, Message("user", "Write JSON for a person named Ann")))
    assert {"name", "age", "city"} <= set(person)
    assert share_of_good_json(loaded, num_requests=12)[0] >= 0.9


@pytest.mark.slow
def test_system_prompt_and_earlier_turns_do_no_harm(loaded: Loaded) -> None:
    turns = (
        Message("system", "You are a helpful assistant. Answer every question as well as you can."),
        Message("user", "Hello!"),
        Message("assistant", "Hello! How can I help you?"),
        Message("user", "What is 5 + 4?"),
    )
    assert chat(loaded, *turns) == "5 + 4 = 9."


@pytest.mark.broad
def test_tokenizer_is_the_one_the_recipe_trains(tokenizer: Tokenizer) -> None:
    assert train_tokenizer(Shape().vocab_size).to_str() == tokenizer.to_str()


@pytest.mark.full
def test_training_repeats_itself() -> None:
    first, second = run_check(2), run_check(2)
    assert first == second
    assert first["losses"] == pytest.approx(json.loads(REFERENCE.read_text())["losses"][:2], abs=0.02)


@pytest.mark.full
def test_training_goes_as_it_went() -> None:
    reference = json.loads(REFERENCE.read_text())
    found = run_check(len(reference["losses"]))
    assert found["losses"] == pytest.approx(reference["losses"], abs=0.02)
    if found["machine"] == reference["machine"]:  # the last bits of a sum depend on the processor
        assert found["weights_sha256"] == reference["weights_sha256"]


def run_check(num_steps: int) -> dict[str, Any]:
    """The first steps, in a process of their own."""
    command = [sys.executable, "-m", "models.train.train", "--check", str(num_steps)]
    variables = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}  # its threads do not spin: others want the cores
    output = subprocess.run(command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, check=True).stdout
    result: dict[str, Any] = json.loads(output)
    return result
