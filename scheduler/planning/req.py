"""One choice of one request on one worker, and the checks of the numbers and token ids that another process sends.

Only the scheduler thread writes a Req. A wrong id or count in a launch would fail every request in it, or end the
process. So it is refused on arrival.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.errors import WireError
from protocol.logit_rules import rules_fault
from protocol.logprobs import Logprobs, LogprobsAsked, checked
from protocol.messages_gateway import FinishReason, SamplingParams, finish_reason
from scheduler.plan import Draw, Join
from scheduler.planning.kv_manager import Holding

MAX_ATTEMPT = 2**32 - 1  # the largest that a frame's header holds, as for MAX_RESERVATION
MAX_RESERVATION = 2**64 - 1
MAX_TOP_K = 2**63 - 1  # the largest int64
MAX_CHOICE = 2**31 - 1


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
    priority: int = 0  # a larger number is preempted first

    holding: Holding | None = None  # set at admission, cleared at release
    num_resumed: int = 0  # outputs with which it last began to decode, if not with none
    key: tuple[str, int] = field(init=False)  # (request_id, attempt)

    # progress, counting all launches enqueued so far
    num_computed: int = 0  # KV of prompt tokens [0, num_computed) is written
    num_sampled: int = 0  # outputs drawn, with the replayed ones; a launch in flight counts as one

    # results that the host knows
    outputs: list[int] = field(default_factory=list)
    finish: FinishReason | None = None

    def __post_init__(self) -> None:
        self.key = self.request_id, self.attempt
        if self.num_replayed:
            self.outputs = list(self.prompt_ids[-self.num_replayed :])
            self.num_sampled = self.num_resumed = self.num_replayed

    @property
    def prompt_len(self) -> int:
        """Tokens to compute before the first one is drawn."""
        return len(self.prompt_ids)

    @property
    def num_left(self) -> int:
        """Outputs that may still be launched."""
        return self.sampling.max_tokens - self.num_sampled

    @property
    def longest(self) -> int:
        """Tokens of KV at its end: all but the last output, which no launch reads."""
        return self.prompt_len - self.num_replayed + self.sampling.max_tokens - 1

    @property
    def held(self) -> Holding:
        """Its row and pages, between admission and release."""
        assert self.holding is not None, f"choice {self.choice} of {self.request_id} holds no row and no pages"
        return self.holding

    @property
    def num_written(self) -> int:
        """Tokens whose KV is written by the launches so far: all but the one drawn last."""
        return self.prompt_len + self.num_sampled - self.num_replayed - 1

    @property
    def has_begun(self) -> bool:
        """Whether a launch has decoded it, and a draft has read its first output. A choice is launched with that output
        known, or in flight; with a draft, one that comes back from host memory was launched before."""
        return self.num_sampled > self.num_replayed + 1 or self.num_resumed > self.num_replayed

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


def draw_of(req: Req, held: Holding) -> Draw:
    """How a plan names a choice at a row, before it draws the token after its context."""
    num_prompt, rules, context = req.prompt_len - req.num_replayed, req.sampling.rules, tuple[int, ...]()
    if rules is not None and rules.reads_context:
        context = (*req.prompt_ids[:num_prompt], *req.outputs)[: req.prompt_len + req.num_sampled - req.num_replayed]
    outputs = tuple(req.outputs[: req.num_sampled]) if req.sampling.grammar else ()
    until = num_prompt + req.sampling.min_tokens
    return Draw(
        held.row, held.owner_number, req.choice, req.sampling, until, req.longest, held.has_draft, context, outputs
    )


def join_of(req: Req, *, num_redrawn: int = 0, hidden: bytes = b"", lookahead: int = 0) -> Join:
    """How a plan names a choice that decodes from now on.

    `num_redrawn`: see Spills. `hidden`: what came with its prompt's KV, see Join. `lookahead`: the layout's.
    """
    held, num_before = req.held, lookahead - 1 if hidden else 0
    last = req.prompt_ids[max(req.prompt_len - num_before, 0) :]
    is_known = req.num_sampled == len(req.outputs) - num_redrawn  # no launch in flight draws for it
    return Join(
        draw_of(req, held),
        req.num_written,
        req.outputs[req.num_sampled - 1] if is_known else None,
        begins=held.has_draft and not req.has_begun,
        hidden=hidden,
        before=(*(0,) * (num_before - len(last)), *last),
    )


def request_fault(
    prompt_ids: Sequence[int], sampling: SamplingParams, num_choices: int, *, vocab_size: int, max_choices: int
) -> str | None:
    """The first field that is out of range, its value and what was expected; or None."""
    if not prompt_ids:
        return "prompt: got no tokens, expected at least 1"
    low, high = min(prompt_ids), max(prompt_ids)
    if low < 0 or high >= vocab_size:
        return f"prompt: got token id {low if low < 0 else high}, expected ids in [0, {vocab_size})"

    if sampling.max_tokens < 1:
        return f"max_tokens: got {sampling.max_tokens}, expected at least 1"
    if sampling.top_k > MAX_TOP_K:
        return f"top_k: got {sampling.top_k}, expected at most {MAX_TOP_K}"
    if num_choices < 1:
        return f"n: got {num_choices}, expected at least 1"
    if num_choices > max_choices:
        return f"n: got {num_choices}, this worker runs at most {max_choices} choices"
    if sampling.rules is not None:
        endings = sampling.ending_ids if sampling.min_tokens else ()
        if (fault := rules_fault(sampling.rules, endings, vocab_size)) is not None:
            return f"{fault[0]}: {''.join(fault[1:])}"
    return None


def replay_fault(
    prompt_ids: Sequence[int], sampling: SamplingParams, num_choices: int, first_choice: int, num_replayed: int
) -> str | None:
    """What is wrong with the choices' numbers or with the outputs replayed to them; or None."""
    if not 0 <= first_choice <= MAX_CHOICE:
        return f"first_choice: got {first_choice}, expected 0 to {MAX_CHOICE}"
    if not num_replayed:
        return None
    most = min(len(prompt_ids), sampling.max_tokens) - 1
    if not 0 < num_replayed <= most:
        return f"num_replayed: got {num_replayed}, expected 0 to {most}: less than the prompt and than max_tokens"
    if num_choices != 1:
        return f"num_replayed: got {num_replayed} for {num_choices} choices, expected one choice"
    return None


def transfer_fault(attempt: int, reservation: int = 0) -> str | None:
    """The number that does not fit into a frame's header, or None."""
    if not 0 <= attempt <= MAX_ATTEMPT:
        return f"attempt: got {attempt}, expected 0 to {MAX_ATTEMPT}"
    if not 0 <= reservation <= MAX_RESERVATION:
        return f"reservation: got {reservation}, expected 0 to {MAX_RESERVATION}"
    return None


def first_tokens_fault(first_tokens: Sequence[int], num_choices: int, vocab_size: int) -> str | None:
    """Why these cannot be the first tokens of `num_choices` choices, or None."""
    if len(first_tokens) != num_choices:
        return f"prefill sent {len(first_tokens)} first tokens, expected {num_choices}"
    wrong = [token for token in first_tokens if not 0 <= token < vocab_size]
    if wrong:
        return f"prefill sent the first token {wrong[0]}, expected ids in [0, {vocab_size})"
    return None


def first_logprobs_fault(all_logprobs: Sequence[Logprobs], num_choices: int, asked: LogprobsAsked | None) -> str | None:
    """Why these cannot be the log-probabilities of the first tokens of `num_choices` choices, or None."""
    expected = 0 if asked is None else num_choices
    if len(all_logprobs) != expected:
        return f"prefill sent the logprobs of {len(all_logprobs)} first tokens, expected {expected}"
    try:
        for logprobs in all_logprobs:
            checked(logprobs, asked, 1)
    except WireError as error:
        return f"prefill sent {error.message}"
    return None


def hidden_fault(hidden: bytes, hidden_size: int) -> str | None:
    """Why these cannot be the hidden states that a draft begins with, `hidden_size` float32 numbers, or None.

    A draft cannot begin with nothing, and without a draft nothing is expected. Numbers that are not finite cost
    proposals, but no token: the model verifies each.
    """
    if len(hidden) != 4 * hidden_size:
        return f"prefill sent a hidden state of {len(hidden)} bytes, expected {4 * hidden_size}"
    return None
