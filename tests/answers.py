"""What a client has asked for, and received."""

from dataclasses import dataclass, field

from protocol.messages_gateway import Assign, ChoiceTokens


@dataclass
class Answer:
    """What the gateway would have of one choice. `seqs` counts how often each seq arrived."""

    tokens: dict[int, int] = field(default_factory=dict)
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
        if piece.finish:
            assert self.finish in ("", piece.finish)
            self.finish = piece.finish


def choices_of(assign: Assign) -> range:
    """The choices of an attempt."""
    return range(assign.first_choice, assign.first_choice + assign.num_choices)
