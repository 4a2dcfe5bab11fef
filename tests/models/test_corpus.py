"""The generated text is a pure function of its seed, and is what the training relies on."""

import hashlib
import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.train import arithmetic, corpus, facts, snippets, words
from models.train.conversations import MAX_TURNS, conversation
from models.train.special import TURN_END, TURN_START
from models.train.stories import PLOTS, Wish, draw_cast, story

SEEDS = st.integers(0, 2**32)


def digest(texts: list[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


@given(SEEDS)
def test_same_seed_same_text(seed: int) -> None:
    assert corpus.sample(seed, 5) == corpus.sample(seed, 5)


def test_text_is_the_one_the_weights_were_trained_on() -> None:
    assert digest(corpus.sample(20, 300)) == "151be4d3c9acb519cafaef77d938c58be8253cc617d003a8b775461f16081698"


def test_seeds_give_different_documents() -> None:
    assert len(set(corpus.sample(1, 500))) > 450
    assert corpus.sample(1, 20) != corpus.sample(2, 20)


def test_document_lengths_fit_a_training_row() -> None:
    lengths = [len(text) for text in corpus.sample(5, 2000)]
    assert 200 < sum(lengths) / len(lengths) < 600
    assert max(lengths) < 1600


@given(SEEDS)
def test_stories_are_whole_sentences_about_the_hero_asked_for(seed: int) -> None:
    text = story(Random(seed), Wish(kind="fox", name="Quill", thing="red kite", friend="Mo"))
    assert "fox" in text
    assert "Quill" in text
    assert text.endswith((".", "!"))
    assert 40 <= len(text.split()) <= 170
    assert "  " not in text


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.__name__)
def test_plots_name_both_characters(plot: object) -> None:
    assert callable(plot)
    rng = Random(3)
    for _ in range(50):
        cast = draw_cast(rng, Wish())
        text = " ".join(plot(rng, cast))
        assert cast.name in text
        assert cast.friend in text
        assert cast.name != cast.friend
        assert "None" not in text


@given(SEEDS)
def test_snippets_parse(seed: int) -> None:
    rng = Random(seed)
    question, answer = snippets.ask_and_answer(rng)
    assert question
    assert isinstance(json.loads(answer), dict)
    assert json.loads(snippets.document(rng))


@given(SEEDS)
def test_sums_are_right_and_never_held_out(seed: int) -> None:
    drawn = arithmetic.draw_sum(Random(seed))
    assert (
        drawn.result
        == {
            "+": drawn.left + drawn.right,
            "-": drawn.left - drawn.right,
            "x": drawn.left * drawn.right,
        }[drawn.op]
    )
    assert drawn.result >= 0
    assert drawn.op != "+" or not arithmetic.is_held_out(drawn.left, drawn.right)


def test_held_out_sums_are_a_tenth_of_the_larger_ones_in_both_orders() -> None:
    held_out = arithmetic.held_out_sums()
    pairs = {(held.left, held.right) for held in held_out}
    assert pairs == {(right, left) for left, right in pairs}
    assert all(max(pair) >= 10 for pair in pairs)
    assert 25 <= len(held_out) <= 60


@given(SEEDS)
def test_conversations_alternate_and_end_with_the_assistant(seed: int) -> None:
    messages = conversation(Random(seed))
    roles = [message.role for message in messages if message.role != "system"]
    assert roles == ["user", "assistant"] * (len(roles) // 2)
    assert 1 <= len(roles) // 2 <= MAX_TURNS
    assert all(message.role != "system" for message in messages[1:])
    assert all(message.content for message in messages)


def test_chat_text_wraps_every_turn() -> None:
    text = corpus.chat_text(conversation(Random(1)))
    assert text.count(TURN_START) == text.count(TURN_END) > 0
    assert text.endswith(f"{TURN_END}\n")


@pytest.mark.parametrize(
    "phrase, expected",
    [("owl", "an owl"), ("fox", "a fox"), ("unicorn", "a unicorn"), ("old fox", "an old fox"), ("Ant", "an Ant")],
)
def test_article(phrase: str, expected: str) -> None:
    assert words.a(phrase) == expected


@given(SEEDS)
def test_every_question_has_an_answer(seed: int) -> None:
    rng = Random(seed)
    for question, answer in (facts.fact(rng), facts.small_talk(rng), facts.unknown(rng)):
        assert question
        assert answer.endswith((".", "!", "?"))
