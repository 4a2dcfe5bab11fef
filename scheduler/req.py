"""One choice of one request on one worker: its tokens, row, pages and progress.

Only the scheduler thread writes it.
"""

from dataclasses import dataclass, field

from protocol.request import FinishReason, SamplingParams, finish_reason


@dataclass(eq=False)
class Req:
    """`row` is 0 and `pages` is empty before admission and after release.

    `prompt_ids` are the tokens to compute before the first one is drawn. The last `num_replayed` of them are outputs of
    an earlier attempt: `outputs` begins with them.
    """

    request_id: str
    attempt: int
    choice: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    num_replayed: int = 0

    # set at admission, cleared at release
    row: int = 0
    row_generation: int = 0
    pages: list[int] = field(default_factory=list)

    # set before admission
    stays_on_device: bool = False  # its KV is read from device memory, so it is not copied to the host twin

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

    def append(self, token: int) -> None:
        """Adds an output token. Sets `finish` if the choice ends with it."""
        assert self.finish is None, "a finished choice takes no token"
        self.outputs.append(token)
        self.finish = finish_reason(self.sampling, len(self.outputs), token)
