"""Prompt chunks: which tokens of which prompts a launch computes."""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.logprobs import PromptLogprobsAsked
from scheduler.plan import Chunk, Scores
from scheduler.planning.req import Req, draw_of


@dataclass(frozen=True)
class ExtendChunk:
    """Prompt tokens [start, end) of `req`. `samples` are the choices whose first token is drawn at its end.

    `to_host`: its KV is needed in host memory, to be sent from there. `asked`: of the prompt's log-probabilities.
    """

    req: Req
    start: int
    end: int
    samples: tuple[Req, ...] = ()
    to_host: bool = False
    asked: PromptLogprobsAsked | None = None

    @property
    def scores(self) -> Scores | None:
        """What is scored with this chunk: the prompt's own tokens behind each of its rows, but no replayed output."""
        if self.asked is None:
            return None
        num_own = self.req.prompt_len - self.req.num_replayed
        start, end = max(self.asked.start, self.start + 1), min(self.end + 1, num_own)
        return Scores(start, self.req.prompt_ids[start:end], self.asked.num_top) if start < end else None


def plan_chunks(
    remaining: Sequence[int], chunk_size: int, taken: int = 0, max_tokens: int | None = None, last: int = 1
) -> list[int]:
    """How many tokens of each prompt to compute. `remaining[i]` tokens are left of prompt i; prompts are oldest first.

    `chunk_size` bounds the tokens of one prompt; 0 means whole prompts. `max_tokens` bounds those of one launch, and
    decodes compute `taken` of them, with a draft several each; without it, `chunk_size` does, or one whole prompt is
    taken. A launch computes at least one token of the oldest prompt. No prompt passes an older one.

    The last chunk of a prompt has `last` tokens or more, or is the whole prompt. Smaller bounds count as `last`.
    """
    budget = max((max_tokens or chunk_size or 1) - taken, last)
    planned = [0] * len(remaining)
    for index, left in enumerate(remaining):
        if chunk_size:
            take = min(left, max(chunk_size, last), budget)
            if 0 < left - take < last:
                take = max(left - last, 0)
        else:
            take = left if left <= budget or index == 0 else 0
        planned[index] = take
        budget -= take
        if budget <= 0 or take == 0:
            break
    return planned


def chunk_of(chunk: ExtendChunk, lookahead: int) -> Chunk:
    """How a plan names a chunk. Choices that hold no row of their own are drawn at the prompt's.

    A draft reads `lookahead` tokens ahead.
    """
    held, ids = chunk.req.held, chunk.req.prompt_ids[chunk.start : chunk.end]
    draws = tuple(draw_of(req, req.holding or held) for req in chunk.samples)
    host_from = None
    if chunk.to_host:
        host_from = 0 if chunk.start == held.num_cached else chunk.start  # KV that was cached need not be there yet
    ahead = chunk.req.prompt_ids[chunk.end : chunk.end + lookahead]
    return Chunk(held.row, chunk.start, ids, draws, host_from, ahead, chunk.scores)
