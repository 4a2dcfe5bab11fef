"""Grammars for the fake model: sets of answers, as token ids, and what may follow in them, in plain Python."""

import json
import random
from collections.abc import Sequence
from concurrent.futures import Executor as Pool
from dataclasses import replace
from functools import cache, partial
from typing import Final

from llguidance import LLMatcher

from model.runner import Runner
from protocol.grammar import grammar_name
from protocol.messages_gateway import SamplingParams
from runtime.clock import Clock
from runtime.vocabulary import Vocabulary
from scheduler.execution.grammars import AnswerGrammars, Inline
from tests.doubles.clock import VirtualClock

NUM_TEXTS: Final = 80  # tokens that have a text, the first ones; EOS is among the last
NUM_SPECIAL: Final = 8
_FIRST: Final = 0x23  # the character of token 0, behind the quote
_ANSWERS: dict[str, frozenset[tuple[int, ...]]] = {}  # by the name of their grammar
_TEXTS: dict[str, str] = {}


@cache
def vocabulary(num_tokens: int) -> Vocabulary:
    """The first tokens are characters. The others have no text."""
    special = frozenset(range(NUM_TEXTS, num_tokens))
    return Vocabulary([b"" if token in special else spelt([token]).encode() for token in range(num_tokens)], special)


def grammars_for(
    runner: Runner,
    masking: Pool | None = None,
    beside: Pool | None = None,
    work: Clock | None = None,
    num_threads: int = 1,
) -> AnswerGrammars:
    """The grammars of an executor with this model. `masking`, `beside`: who makes the masks, and those of late rows.
    `work`: what they take; None: nothing."""
    return AnswerGrammars(
        partial(vocabulary, runner.config.vocab_size),
        masking=masking or Inline(),
        beside=beside or Inline(),
        work=work or VirtualClock(),
        num_threads=num_threads,
    )


def spelt(tokens: Sequence[int]) -> str:
    """The text of these tokens."""
    return "".join(chr(_FIRST + token) for token in tokens)


def grammar_of(answers: Sequence[tuple[int, ...]]) -> str:
    """The name of a grammar of these answers. `text_named` has its text."""
    literals = [json.dumps(spelt(answer), ensure_ascii=False) for answer in answers]
    name = name_of(LLMatcher.grammar_from_lark(f"start: {' | '.join(literals)}"))
    _ANSWERS[name] = frozenset(answers)
    return name


def name_of(text: str) -> str:
    """The name of a grammar with this text, by which `text_named` has it from now on."""
    name = grammar_name(text)
    _TEXTS[name] = text
    return name


def text_named(name: str) -> str:
    """The text of a grammar that was made here; "" for ""."""
    return _TEXTS[name] if name else ""


def may_follow(outputs: Sequence[int], params: SamplingParams) -> set[int]:
    """The tokens that may follow `outputs` in an answer."""
    answers, length = _ANSWERS[params.grammar], len(outputs)
    going_on = {answer[length] for answer in answers if len(answer) > length and answer[:length] == tuple(outputs)}
    ends = tuple(outputs) in answers and not (params.ignore_eos and going_on)
    return going_on | (set(params.eos_token_ids) if ends else set())


def with_grammar(rng: random.Random, params: SamplingParams, vocab_size: int, lengths: range) -> SamplingParams:
    """The same with a grammar of random answers, which share their beginnings; some are the beginning of another."""
    few = rng.sample(range(NUM_TEXTS), 3)
    answers = {tuple(rng.choices(few, k=rng.choice(lengths))) for _ in range(rng.randint(1, 12))}
    answers |= {answer[: rng.randint(min(lengths), len(answer))] for answer in sorted(answers)[:3]}
    eos = tuple(rng.sample(range(vocab_size - NUM_SPECIAL, vocab_size), rng.choice((1, 2))))
    name = grammar_of(sorted(answers))
    late = rng.random() < 0.3
    params = replace(params, grammar=name, eos_token_ids=eos, ignore_eos=late)
    return replace(params, stop_token_ids=(), min_tokens=0, rules=None)
