"""What a client has asked for, and received."""

from dataclasses import dataclass, field, replace

from protocol.logprobs import PromptLogprobsAsked, TokenLogprob
from protocol.messages_gateway import Assign, ChoiceTokens, PromptLogprobs


@dataclass
class Answer:
    """What the gateway would have of one choice. `seqs` counts how often each seq arrived."""

    tokens: dict[int, int] = field(default_factory=dict)
    finish: str = ""
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)  # by seq, of what is no replay
    is_scored: bool | None = None  # whether every piece came with log-probabilities; None: none has come

    @property
    def ids(self) -> list[int]:
        """The tokens in order; a gap is an assertion error."""
        assert sorted(self.tokens) == list(range(len(self.tokens))), f"gap in {sorted(self.tokens)}"
        return [self.tokens[seq] for seq in range(len(self.tokens))]

    def take(self, piece: ChoiceTokens) -> None:
        """Adds a piece; a repeat must say the same."""
        for offset, token in enumerate(piece.token_ids):
            seq = piece.seq + offset
            assert self.tokens.setdefault(seq, token) == token, f"seq {seq} came twice with different tokens"
        scored = () if piece.logprobs is None else piece.logprobs.tokens()
        assert piece.logprobs is None or len(scored) == len(piece.token_ids), f"seq {piece.seq}: {len(scored)} scores"
        if piece.token_ids:
            assert self.is_scored in (None, bool(scored)), f"seq {piece.seq}: {len(scored)} scores, unlike others"
            self.is_scored = bool(scored)
        for offset, each in enumerate(scored):
            assert self.logprobs.setdefault(piece.seq + offset, each) == each, f"seq {piece.seq} has other scores now"
        if piece.finish:
            assert self.finish in ("", piece.finish)
            self.finish = piece.finish


@dataclass
class PromptScores:
    """The log-probabilities of a prompt's own tokens, by position, if they are asked for."""

    asked: PromptLogprobsAsked | None
    num_tokens: int  # of the prompt
    found: dict[int, TokenLogprob] = field(default_factory=dict)

    @property
    def missing(self) -> PromptLogprobsAsked | None:
        """What another attempt has to ask for."""
        start = self.next
        return None if self.asked is None or start >= self.num_tokens else replace(self.asked, start=start)

    @property
    def next(self) -> int:
        """The position of the first token that is missing; the prompt's length if none is."""
        if self.asked is None:
            return self.num_tokens
        return next((at for at in range(self.asked.start, self.num_tokens) if at not in self.found), self.num_tokens)

    def take(self, piece: PromptLogprobs) -> None:
        """Adds a piece, without a gap. Tokens come twice only from two attempts, with equal numbers."""
        assert self.asked is not None, "nobody has asked for log-probabilities of the prompt"
        assert self.asked.start <= piece.start <= self.next, f"a gap before {piece.start}: {sorted(self.found)}"
        for at, each in enumerate(piece.logprobs.tokens(), piece.start):
            assert at < self.num_tokens, f"{at} is no token of the prompt"
            assert self.found.setdefault(at, each) == each, f"prompt token {at} has other scores now"


def choices_of(assign: Assign) -> range:
    """The choices of an attempt."""
    return range(assign.first_choice, assign.first_choice + assign.num_choices)


def next_attempt(
    first: Assign, number: int, choice: int, outputs: list[int], missing: PromptLogprobsAsked | None
) -> Assign:
    """One choice of a request goes on behind its `outputs`. `missing`: see PromptScores."""
    prompt = first.prompt_ids[: len(first.prompt_ids) - first.num_replayed]
    return replace(
        first,
        attempt=number,
        prompt_ids=(*prompt, *outputs),
        num_choices=1,
        first_choice=choice,
        num_replayed=len(outputs),
        resumes=True,
        prompt_logprobs=missing,
    )
