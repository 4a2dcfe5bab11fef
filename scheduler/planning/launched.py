"""Launches as the planner remembers them, and for which choices their results are."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.logprobs import Logprobs
from scheduler.plan import Owner, StepResult
from scheduler.planning.chunks import ExtendChunk
from scheduler.planning.launch_costs import PLAIN
from scheduler.planning.req import Req
from scheduler.planning.speculation import Speculation
from scheduler.planning.spills import Spills

Drawn = list[tuple[Req, tuple[int, ...]]]  # choices, each with the run of tokens that a launch has drawn


class PromptPiece(NamedTuple):
    """Log-probabilities of tokens of the prompt of `req`, from position `start` on."""

    req: Req
    start: int
    logprobs: Logprobs


@dataclass(eq=False)
class Launched:
    """A launch in flight, or one that is over and not processed yet."""

    ticket: int
    chunks: tuple[ExtendChunk, ...]
    decodes: tuple[Req, ...]
    num_steps: int = 0  # see Plan
    drafts: bool = True  # see Plan
    layers: deque[int] = field(default_factory=deque)  # written, and not yet taken by the role
    computed_at: float | None = None  # see StepResult
    hidden: tuple[bytes, ...] = ()  # see StepResult
    logprobs: dict[Req, deque[Logprobs]] = field(default_factory=dict)  # of runs not taken yet; only who asks has some
    prompts: tuple[tuple[Logprobs, ...], ...] = ()  # see StepResult

    @property
    def reqs(self) -> list[Req]:
        """All requests of the launch. A request may appear twice."""
        return [*(req for chunk in self.chunks for req in (chunk.req, *chunk.samples)), *self.decodes]

    @property
    def kind(self) -> int:
        """How many tokens it proposes, or PLAIN."""
        return self.num_steps if self.drafts else PLAIN

    def next_logprobs(self, req: Req) -> Logprobs | None:
        """Those of the next run of `req`, in the order in which a role takes them; None if it asks for none."""
        return self.logprobs[req].popleft() if req in self.logprobs else None

    @property
    def prompt_logprobs(self) -> Iterator[PromptPiece]:
        """Those of prompt tokens that were asked for, in pieces."""
        scored = ((chunk.req, scores.start) for chunk in self.chunks if (scores := chunk.scores) is not None)
        for (req, start), pieces in zip(scored, self.prompts, strict=False):
            for piece in pieces:
                yield PromptPiece(req, start, piece)
                start += piece.num_tokens

    def count_progress(self) -> None:
        """Counts what it computes and draws, as if it had succeeded."""
        for chunk in self.chunks:
            chunk.req.num_computed = chunk.end
            for req in chunk.samples:
                req.num_sampled += 1
        for req in self.decodes:
            req.num_sampled += 1


class Over(NamedTuple):
    """A launch that is over."""

    launched: Launched
    result: StepResult


class Results:
    """Who holds each row, and so what a result means. Rows that were given away since are left out."""

    def __init__(self, speculation: Speculation, spills: Spills) -> None:
        self._speculation = speculation
        self._spills = spills
        self._holders: dict[Owner, Req] = {}
        # The owners in the last result and their requests, until a row is given back.
        self._newest: tuple[Sequence[Owner], list[Req | None]] = (), []

    def seated(self, req: Req) -> None:
        """`req` has got a row."""
        self._holders[req.held.owner] = req

    def unseated(self, req: Req) -> None:
        """`req` gives its row back."""
        del self._holders[req.held.owner]
        self._newest = (), []

    def holders(self, owners: Sequence[Owner]) -> list[Req]:
        """The choices that still hold these rows."""
        return [req for owner in owners if (req := self._holders.get(owner)) is not None]

    def drawn(self, owners: Sequence[Owner], runs: Sequence[tuple[int, ...]]) -> Drawn:
        """The choices that hold these rows, each with its run of tokens."""
        if owners is not self._newest[0]:  # most launches draw for the same rows as the one before
            self._newest = owners, list(map(self._holders.get, owners))
        return [(req, run) for req, run in zip(self._newest[1], runs, strict=True) if req is not None]

    def take(self, launched: Launched, result: StepResult) -> Drawn:
        """The choices with the new tokens that a launch has drawn for them. Called once for each launch.

        Counts the proposals that were kept. Leaves out outputs that are drawn once more; see Spills.
        """
        drawn = self.drawn(result.rows, result.tokens)
        if launched.num_steps:
            decoding = set(launched.decodes)
            runs = [run for req, run in drawn if req in decoding and req.held.has_draft]
            self._speculation.count(launched.num_steps, runs)
        if result.logprobs:
            self._note_logprobs(launched, result)
        if not self._spills.redraws:
            return drawn
        new = [(req, run, self._spills.take_redrawn(req, run)) for req, run in drawn]
        for req, run, rest in new:
            if len(rest) < len(run) and (logprobs := launched.logprobs.get(req)):
                logprobs[0] = logprobs[0].part(len(run) - len(rest), len(run))
        return [(req, rest) for req, run, rest in new if rest or not run]  # an empty run: its scores are not finite

    def _note_logprobs(self, launched: Launched, result: StepResult) -> None:
        """Notes the log-probabilities of runs, one choice's behind one another: choices may draw at one row."""
        for req, logprobs in zip(self._newest[1], result.logprobs, strict=True):
            if req is not None and logprobs is not None:
                launched.logprobs.setdefault(req, deque()).append(logprobs)
