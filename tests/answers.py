"""What a client has asked for, and received."""

from dataclasses import dataclass, field

from protocol.logprobs import TokenLogprob
from protocol.messages_gateway import Assign, ChoiceTokens


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


def choices_of(assign: Assign) -> range:
    """The choices of an attempt."""
    return range(assign.first_choice, assign.first_choice + assign.num_choices)
