"""One prompt as workers get it: its tokens, and the rules for the tokens of its choices."""

from dataclasses import dataclass

from protocol.logprobs import PromptLogprobsAsked
from protocol.messages_gateway import SamplingParams


@dataclass(frozen=True)
class Prompt:
    """One prompt, ready to be assigned."""

    token_ids: tuple[int, ...]
    sampling: SamplingParams
    num_choices: int
    cache_salt: str = ""
    priority: int = 0
    grammar: str = ""  # the text of the grammar that its answers follow
    prompt_logprobs: PromptLogprobsAsked | None = None  # of its own tokens
