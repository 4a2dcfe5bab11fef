"""The prompts of one client request, and what workers report of each."""

from collections.abc import Sequence

from gateway.parts import KEPT_BYTES
from gateway.prompt_part import PromptPart
from gateway.requests import RequestRecord
from gateway.translate import Prompt

JSON_TIMES = 10  # JSON of log-probabilities is so many times longer than they are, at most


class CallPrompts:
    """Choice c of prompt p has the index p * n + c in the answer. `records`: one for each prompt that is assigned."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.all = prompts
        self.records: list[RequestRecord] = []
        self.num_choices = sum(prompt.num_choices for prompt in prompts)
        self.num_tokens = sum(len(prompt.token_ids) for prompt in prompts)

    def place_of(self, index: int) -> int:
        """The place of the prompt that this choice continues."""
        return index // self.all[0].num_choices

    def of(self, index: int) -> Prompt:
        """The prompt that this choice continues."""
        return self.all[self.place_of(index)]

    def record_of(self, index: int) -> RequestRecord | None:
        """What is known of this prompt; None before it is assigned."""
        place = self.place_of(index)
        return self.records[place] if place < len(self.records) else None

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
    def num_score_bytes(self) -> int:
        """Memory of the log-probabilities of prompts, and of what is kept of them as JSON."""
        sizes = [each.prompt_part.num_bytes for each in self.records if each.prompt_part is not None]
        return sum(size + min(JSON_TIMES * size, 2 * KEPT_BYTES) for size in sizes)

    @property
    def num_cached(self) -> int:
        """Prompt tokens that workers have not computed, because they had their KV."""
        return sum(record.num_cached for record in self.records)
