"""One choice of one request on one worker: its tokens, its row, its pages, and how far it has come.

Written by the scheduler thread only. What it does not know: batches, sockets, other choices.
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

    # said before admission
    stays_on_device: bool = False  # its KV is read where the device writes it, so that no twin in host memory needs it

    # progress of launches
    num_computed: int = 0  # prompt tokens whose KV is written by launches enqueued so far: [0, num_computed)
    num_sampled: int = 0  # outputs, replayed ones among them, that launches enqueued so far will have drawn

    # results, as the host knows them
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
        """Takes a result; sets `finish` if the choice ends with it."""
        assert self.finish is None, "a finished choice takes no token"
        self.outputs.append(token)
        self.finish = finish_reason(self.sampling, len(self.outputs), token)


def kv_tokens(prompt_len: int, num_left: int) -> int:
    """Tokens whose KV decoding needs when `num_left` are to be drawn: all but the last. 0 when prefill draws the only
    one."""
    return 0 if num_left == 1 else prompt_len + num_left - 1
