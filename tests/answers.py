"""What a client has asked for, and received."""

from dataclasses import dataclass, field

from protocol.logprobs import TokenLogprob
from protocol.messages_gateway import Assign, ChoiceTokens


@dataclass
class Answer:
    """What the gateway would have of one choice, by seq."""

    tokens: dict[int, int] = field(default_factory=dict)
    scores: dict[int, TokenLogprob] = field(default_factory=dict)  # if the request asks for log-probabilities
    finish: str = ""

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
        scores = piece.logprobs.tokens() if piece.logprobs is not None else ()
        assert len(scores) in (0, len(piece.token_ids)), f"{len(piece.token_ids)} tokens with {len(scores)} logprobs"
        for seq, score in enumerate(scores, piece.seq):
            assert self.scores.setdefault(seq, score) == score, f"seq {seq} came twice with different logprobs"
        if piece.finish:
            assert self.finish in ("", piece.finish)
            self.finish = piece.finish


def choices_of(assign: Assign) -> range:
    """The choices of an attempt."""
    return range(assign.first_choice, assign.first_choice + assign.num_choices)
