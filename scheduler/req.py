"""One choice of one request on one worker: its tokens, its holding (row and pages) and progress.

Only the scheduler thread writes it.
"""

from dataclasses import dataclass, field

from protocol.request import FinishReason, SamplingParams, finish_reason
from scheduler.kv_book import Holding, KvBook
from scheduler.retire_queue import IsRead


@dataclass(eq=False)
class Req:
    """`holding` is None before admission and after release.

    `prompt_ids` are the tokens to compute before the first one is drawn. The last `num_replayed` of them are outputs of
    an earlier attempt: `outputs` begins with them.
    """

    request_id: str
    attempt: int
    choice: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    num_replayed: int = 0

    holding: Holding | None = None  # set at admission, cleared at release

    # progress, counting all launches enqueued so far
    num_computed: int = 0  # KV of prompt tokens [0, num_computed) is written
    num_sampled: int = 0  # outputs drawn, with the replayed ones

    # results that the host knows
    outputs: list[int] = field(default_factory=list)
    finish: FinishReason | None = None

    def __post_init__(self) -> None:
        if self.num_replayed:
            self.outputs = list(self.prompt_ids[-self.num_replayed :])
            self.num_sampled = self.num_replayed

    @property
    def prompt_len(self) -> int:
        """Tokens to compute before the first one is drawn."""
        return len(self.prompt_ids)

    @property
    def num_left(self) -> int:
        """Outputs that may still be launched."""
        return self.sampling.max_tokens - self.num_sampled

    @property
    def bans_endings(self) -> bool:
        """Whether the next token drawn may not end the choice (min_tokens)."""
        return self.num_sampled < self.sampling.min_tokens

    @property
    def held(self) -> Holding:
        """Its row and pages, between admission and release."""
        assert self.holding is not None, f"choice {self.choice} of {self.request_id} holds no row and no pages"
        return self.holding

    def release(self, book: KvBook, is_read: IsRead | None = None) -> None:
        """Gives its row and pages back to `book`. A second call does nothing. `is_read`: see KvBook.release."""
        if self.holding is not None:
            book.release(self.holding, is_read)
            self.holding = None

    def append(self, token: int) -> None:
        """Adds an output token. Sets `finish` if the choice ends with it."""
        assert self.finish is None, "a finished choice takes no token"
        self.outputs.append(token)
        self.finish = finish_reason(self.sampling, len(self.outputs), token)
