"""Forced texts: what must follow is tokenised a part at a time, and written as the tokenizer writes the whole."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher
from tokenizers import AddedToken, Tokenizer

from models.train.train import STORY_FOLDER
from runtime.grammars import Matching, compile_grammar
from runtime.vocabulary import FORCED_CHARS, Vocabulary, load_vocabulary
from tests.gateway.folders import byte_tokenizer, piece_tokenizer

WORDS = ("ab", "abab", " the", "fox", "é", "🦊", "\u4e16", " ", "  ", "0", "12", ".", "x" * 40, "ab" * 150, "'s", "-")


def random_text(rng: random.Random, longest: int) -> str:
    parts = rng.choices(rng.sample(WORDS, rng.randint(1, 4)), k=rng.randint(1, longest))
    return "".join(parts)


def forms(text: str) -> dict[str, str]:
    """Grammars of one text, by kind."""
    literal = json.dumps(text, ensure_ascii=False)
    return {
        "lark": LLMatcher.grammar_from_lark(f"start: {literal}"),
        "choice": LLMatcher.grammar_from_lark(f"start: {literal} | {json.dumps('~' + text, ensure_ascii=False)}"),
        "regex": LLMatcher.grammar_from_regex("".join(f"\\{each}" if each in ".-" else each for each in text)),
        "const": LLMatcher.grammar_from_json_schema({"const": text}),
    }


def allowed(matching: Matching) -> list[int]:
    return [int(token) for token in np.flatnonzero(np.unpackbits(matching.mask().view(np.uint8), bitorder="little"))]


class Watched:
    """A vocabulary whose tokenizer is watched. `sizes`: of the texts that it was asked for."""

    def __init__(self, vocabulary: Vocabulary, special: frozenset[int]) -> None:
        self.sizes: list[int] = []
        encode = vocabulary._encode_text
        assert encode is not None

        def watched(text: str) -> Sequence[int]:
            self.sizes.append(len(text))
            return encode(text)

        self.vocabulary = Vocabulary(vocabulary.tokens, special, watched)


@pytest.fixture(scope="module")
def story() -> Vocabulary:
    return load_vocabulary(Path(STORY_FOLDER), 1024)


@pytest.mark.parametrize("kind", ["lark", "choice", "regex", "const"])
def test_only_the_beginning_of_a_forced_text_is_tokenised_for_a_mask(kind: str, story: Vocabulary) -> None:
    watched = Watched(story, frozenset({0, 1, 2}))
    matching = compile_grammar(forms("ab" * 4_000)[kind], watched.vocabulary).begin((2,))
    for _ in range(20):
        matching.read(allowed(matching)[:1])
    assert not matching.fault and watched.sizes, "the tokenizer was asked"
    assert max(watched.sizes) <= FORCED_CHARS


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("make", [byte_tokenizer, piece_tokenizer])
def test_a_forced_text_is_written_as_the_tokenizer_writes_the_whole(
    make: Callable[[], Tokenizer], seed: int, tmp_path: Path
) -> None:
    """Texts end within the bound, or go on behind it."""
    make().save(str(tmp_path / "tokenizer.json"))
    vocabulary, rng = load_vocabulary(tmp_path, make().get_vocab_size()), random.Random(seed)
    for longest in (3, 30):
        text = random_text(rng, longest)
        assert vocabulary._encode_text is not None
        whole = vocabulary._encode_text(text)
        if b"".join(vocabulary.tokens[token] for token in whole) != text.encode():
            whole = vocabulary.tokenizer.greedy_tokenize(text)  # the tokenizer changes it
        matching = compile_grammar(forms(text)["lark"], vocabulary).begin((0,))
        assert allowed(matching)[0] == whole[0] and len(allowed(matching)) == 1
        written = b""
        while not matching.matcher.is_accepting():
            token = allowed(matching)[0]
            written += vocabulary.tokens[token]
            matching.read([token])
        assert written == text.encode() and not matching.fault


def test_a_forced_text_behind_a_special_token_is_written_whole(story: Vocabulary) -> None:
    watched, text = Watched(story, frozenset({0, 1, 2, 5})), "ab fox" * 80
    grammar = LLMatcher.grammar_from_lark(f"start: <[5]> {json.dumps(text)} <[5]>")
    matching = compile_grammar(grammar, watched.vocabulary).begin((2,))
    drawn: list[int] = []
    while not matching.matcher.is_accepting():
        drawn.append(allowed(matching)[0])
        matching.read(drawn[-1:])
    assert (drawn[0], drawn[-1]) == (5, 5) and max(watched.sizes) <= FORCED_CHARS
    assert b"".join(story.tokens[token] for token in drawn[1:-1]) == text.encode()


def test_the_library_asks_for_texts_only() -> None:
    vocabulary = Vocabulary([b"a"], frozenset())
    with pytest.raises(TypeError, match="expected a text"):
        vocabulary._wrapped(b"a")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["lark", "choice", "regex", "const"])
@pytest.mark.parametrize("make", [byte_tokenizer, piece_tokenizer])
def test_names_of_special_tokens_in_a_forced_text_are_written_in_letters(
    make: Callable[[], Tokenizer], kind: str, tmp_path: Path
) -> None:
    """The tokenizer would read each as the token itself, of which the EOS token ends the answer."""
    make().save(str(tmp_path / "tokenizer.json"))
    vocabulary = load_vocabulary(tmp_path, make().get_vocab_size())
    names = [vocabulary.tokens[token].decode() for token in sorted(vocabulary._special) if vocabulary.tokens[token]]
    assert len(names) == 3
    rng = random.Random(kind)
    for name in names:
        text = random_text(rng, 3) + name + name + random_text(rng, 3)
        matching = compile_grammar(forms(text)[kind], vocabulary).begin((max(vocabulary._special),))
        drawn: list[int] = []
        while not matching.matcher.is_accepting():
            drawn.append(rng.choice([token for token in allowed(matching) if token < vocabulary.num_tokens]))
            matching.read(drawn[-1:])
            assert not matching.fault, matching.fault
        assert not set(drawn) & vocabulary._special


def test_tokens_of_the_tokenizer_that_the_model_lacks_write_no_forced_text(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    vocabulary = load_vocabulary(tmp_path, 256)
    assert vocabulary._encode_text is not None and max(vocabulary._encode_text("he")) >= 256
    assert vocabulary._encode("he") == [ord("h"), ord("e")]


@pytest.mark.parametrize("make", [byte_tokenizer, piece_tokenizer])
def test_added_tokens_in_brackets_stand_in_no_text_and_others_do(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    """Many models add `<tool_call>` and runs of spaces as tokens that are not special."""
    tokenizer = make()
    marks, texts = ["<tool_call>", "</think>", "[TOOL_CALLS]"], ["    ", "< a >", "a<b>"]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in (*marks, *texts)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = load_vocabulary(tmp_path, tokenizer.get_vocab_size())
    ids = {text: tokenizer.token_to_id(text) for text in (*marks, *texts)}
    anything = compile_grammar(LLMatcher.grammar_from_lark(r"start: /(?s:.*)/"), vocabulary).begin((0,))
    assert set(allowed(anything)) & set(ids.values()) == {ids[text] for text in texts}

    named = LLMatcher.grammar_from_lark('start: "a" <tool_call> "b" </think>')
    matching = compile_grammar(named, vocabulary).begin((0,))
    drawn: list[int] = []
    while not matching.matcher.is_accepting():
        drawn += allowed(matching)[:1]
        matching.read(drawn[-1:])
    assert drawn[1::2] == [ids["<tool_call>"], ids["</think>"]] and not matching.fault
