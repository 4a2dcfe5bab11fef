"""A generation request as workers see it: token ids and sampling rules, no text."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from protocol.message import Flag, Int, Ints, Message, Number


class FinishReason(StrEnum):
    """Why a choice ended. STOP: EOS or a stop token. LENGTH: max_tokens. CANCELLED: the client left or cancelled."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class SamplingParams(Message):
    """How tokens are drawn and when a choice ends. The gateway fills every field."""

    max_tokens: Int  # at least 1
    min_tokens: Int = 0  # EOS and stop tokens are not drawn before that many outputs
    temperature: Number = 1.0  # 0 is greedy
    top_k: Int = 0  # 0 is off
    top_p: Number = 1.0  # 1 is off
    min_p: Number = 0.0  # 0 is off
    seed: Int = 0  # 64-bit; noise is keyed by (seed, choice, position)
    stop_token_ids: Ints = ()
    eos_token_ids: Ints = ()
    ignore_eos: Flag = False

    @cached_property
    def ending_ids(self) -> frozenset[int]:
        """Tokens that end a choice: stop tokens, and EOS unless it is ignored."""
        return frozenset(self.stop_token_ids) | (frozenset() if self.ignore_eos else frozenset(self.eos_token_ids))


def finish_reason(params: SamplingParams, num_outputs: int, last_token: int) -> FinishReason | None:
    """Why a choice with `num_outputs` tokens, the last being `last_token`, has ended; None if it goes on."""
    if num_outputs >= params.min_tokens and last_token in params.ending_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if num_outputs >= params.max_tokens else None
