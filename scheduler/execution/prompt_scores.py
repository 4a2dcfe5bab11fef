"""Log-probabilities of prompt tokens: the rows that a launch scores beside those that it draws from, and their results.

The token at position p of a prompt is scored with the row of the token before it. So a forward gives the hidden states
of more rows than it draws from, and their logits are made in blocks.
Shapes: T tokens of the forward, L rows that it draws from, S tokens that are scored, V vocabulary, F numbers of a
feature.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from model.inputs import ModelInput, int64_column
from model.logprobs import PromptRows, score_hidden
from model.paged_kv import PagedKv
from model.runner import Runner
from protocol.logprobs import Logprobs, pieces_of
from scheduler.plan import Chunk, Scores


def scores_of(chunks: Sequence[Chunk]) -> tuple[Scores, ...]:
    """What each chunk scores that scores anything."""
    return tuple([chunk.scores for chunk in chunks if chunk.scores is not None])


def prompt_rows(chunks: Sequence[Chunk], device: torch.device) -> PromptRows | None:
    """The tokens that a launch of these chunks scores; None: there are none. Chunks come first in a forward."""
    rows, tokens, num_top, before = list[int](), list[int](), 0, 0
    for chunk in chunks:
        if (scores := chunk.scores) is not None:
            first = before + scores.start - 1 - chunk.start
            rows.extend(range(first, first + len(scores.ids)))
            tokens.extend(scores.ids)
            num_top = max(num_top, scores.num_top)
        before += len(chunk.ids)
    return PromptRows(int64_column(rows, device), int64_column(tokens, device), num_top) if rows else None


def scored_forward(
    runner: Runner, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None, scored: PromptRows
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Runs the model once, for rows that the launch draws from and for rows that score prompt tokens.

    Gives logits (L, V) of the former; features (T, F), if there is a draft; and, flat, the int32 words of each scored
    token as model/logprobs.py `score` gives them."""
    num_drawn = inp.logit_indices_L.shape[0]
    wider_input = replace(inp, logit_indices_L=torch.cat((inp.logit_indices_L, scored.rows_S)))
    hidden, features_TF = runner.hidden(wider_input, kv, on_layer)
    vocab_size = runner.config.vocab_size
    words_SW = score_hidden(hidden[num_drawn:], runner.logits, scored.next_S, scored.num_top, vocab_size)
    return runner.logits(hidden[:num_drawn]), features_TF, words_SW.flatten()


def pieces_of_prompts(scores: Sequence[Scores], words: Sequence[int]) -> tuple[tuple[Logprobs, ...], ...]:
    """What is known of each chunk's tokens, from the words of all of them."""
    num_tokens = [len(score.ids) for score in scores]
    words_SW = np.array(words, dtype="<i4").reshape(sum(num_tokens), -1)
    pieces, start = list[tuple[Logprobs, ...]](), 0
    for score, size in zip(scores, num_tokens, strict=True):
        num_top = min(score.num_top, words_SW.shape[1] // 2 - 1)
        pieces.append(pieces_of(num_top, words_SW[start : start + size, : 2 + 2 * num_top].tobytes()))
        start += size
    return tuple(pieces)
