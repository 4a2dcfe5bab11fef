"""The prompts of one client request, and what workers report of each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.generation.translate import PreparedPrompt
from gateway.routing.prompt_scores import PromptPart
from gateway.routing.requests import RequestRecord
from gateway.text.echo import Echo
from gateway.words.scored import ScoredToken, SharedTokens


class CallPrompts:
    """Choice c of prompt p has the index p * n + c in the answer. `records`: one for each prompt that is assigned."""

    def __init__(self, prompts: Sequence[PreparedPrompt]) -> None:
        self.all = prompts
        self.records: list[RequestRecord] = []
        self.num_choices = sum(prompt.num_choices for prompt in prompts)
        self.num_tokens = sum(len(prompt.token_ids) for prompt in prompts)

    def place_of(self, index: int) -> int:
        """The place of the prompt that this choice continues."""
        return index // self.all[0].num_choices

    def of(self, index: int) -> PreparedPrompt:
        """The prompt that this choice continues."""
        return self.all[self.place_of(index)]

    def record_of(self, index: int) -> RequestRecord | None:
        """What is known of this prompt; None before it is assigned."""
        position = self.place_of(index)
        return self.records[position] if position < len(self.records) else None

    def part(self, index: int) -> PromptPart | None:
        """The log-probabilities of the prompt of a choice, if they are asked for. None, too, where the choice was
        aborted before they were there."""
        record = self.record_of(index)
        part = None if record is None else record.prompt_part
        return part if part is not None and part.missing is None else None

    def tokens_of(self, index: int) -> tuple[int, int]:
        """(tokens of the prompt of this choice, how many of them were not computed because workers had their KV)."""
        record = self.record_of(index)
        return len(self.of(index).token_ids), 0 if record is None else record.num_cached

    @property
    def num_cached(self) -> int:
        """Prompt tokens that workers have not computed, because they had their KV."""
        return sum(record.num_cached for record in self.records)


@dataclass(frozen=True)
class EchoedTokens(SharedTokens):
    """The tokens of an echo. They are unpacked where they are read."""

    part: PromptPart
    echo: Echo
    is_shared: bool = False

    def __len__(self) -> int:
        return len(self.part)

    def __iter__(self) -> Iterator[ScoredToken]:
        scores = self.part.tokens(self.echo.num_top)
        return map(ScoredToken, self.part.token_ids, self.echo.offsets or (), scores)

    def __contains__(self, token: object) -> bool:
        return token in list(self)
