"""One choice of one request on one worker: its tokens, its holding (row and pages) and progress.

Only the scheduler thread writes it.
"""

from dataclasses import dataclass, field

from protocol.messages_gateway import FinishReason, SamplingParams, finish_reason
from scheduler.kv_book import Holding


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
    num_sampled: int = 0  # outputs drawn, with the replayed ones; a launch in flight counts as one

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
    def held(self) -> Holding:
        """Its row and pages, between admission and release."""
        assert self.holding is not None, f"choice {self.choice} of {self.request_id} holds no row and no pages"
        return self.holding

    @property
    def num_written(self) -> int:
        """Tokens whose KV is written by the launches so far: all but the one drawn last."""
        return self.prompt_len + self.num_sampled - self.num_replayed - 1

    def append(self, run: tuple[int, ...]) -> tuple[int, ...]:
        """Adds the outputs that one launch has drawn, up to the one that ends the choice. Returns those taken.

        Sets `finish` if the choice ends. The launch was counted as one output.
        """
        assert self.finish is None, "a finished choice takes no token"
        if len(run) == 1:  # almost always, and the loop below takes half as long again
            self.outputs += run
            self.finish = finish_reason(self.sampling, len(self.outputs), run[0])
            return run

        start = len(self.outputs)
        for token in run:
            self.outputs.append(token)
            self.finish = finish_reason(self.sampling, len(self.outputs), token)
            if self.finish is not None:
                break
        taken = run[: len(self.outputs) - start]
        self.num_sampled += len(taken) - 1
        return taken
