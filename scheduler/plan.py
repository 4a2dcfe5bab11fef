"""Plans and their results: all that passes between a planner and an executor. Plain data, so it may cross processes.

    planner --Plan, CopyPages, StageIn, Spill, Fill, WriteDraft--> executor
    planner --LearnGrammar, ForgetGrammar, MakeMask, DropMask--> executor
    executor --LayerWritten, StepResult, Done, GrammarLearnt, MaskReady--> planner

Operations are numbered by one sequence of tickets. A plan names changes only: the executor keeps the rows that decode.
To apply a plan: write the grants, remove the rows that leave, append the rows that join.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import FailFast

from protocol.grammar import GrammarText
from protocol.logprobs import Logprobs, NumTop
from protocol.message import Blob, Boundary, Count, Flag, Int, Ints, Message, Positive, Seconds, Text
from protocol.messages_gateway import SamplingParams
from protocol.messages_group import StepShape

Owner = tuple[Count, Count]  # (row, owner_number): a row as it was handed out once


# ---- planner to executor ----


@dataclass(frozen=True)
class Grant(Message):
    """Pages [start, start + len(pages)) of a row's context. `start` 0 gives the row to a new owner."""

    row: Count
    owner_number: Count
    start: Count
    pages: Ints


@dataclass(frozen=True)
class Draw(Message):
    """A choice whose tokens are drawn, and how. Shorter contexts than `until` tokens may not end (min_tokens).

    Its context has `limit` tokens of KV at most; a speculative launch must know it. Without KV of a draft, as `drafts`
    says, nothing is proposed for it. `context` are the tokens so far, as many as are known, if a rule reads them: the
    prompt, then outputs. `outputs` are those of its answer, as many as are known, if a grammar rules it. The executor
    has learnt that grammar.
    """

    row: Count
    owner_number: Count
    choice: Count
    sampling: SamplingParams
    until: Int
    limit: Count = 0
    drafts: Flag = True
    context: Ints = ()
    outputs: Ints = ()

    @property
    def num_prompt(self) -> int:
        """Tokens of its prompt."""
        return self.until - self.sampling.min_tokens


@dataclass(frozen=True)
class Join(Message):
    """A row that decodes from this launch on; earlier operations write the KV of its first `seq_len` tokens.

    `input_id` is the token after them. None: an earlier launch draws it, and the FutureMap relays it. `begins`: it has
    not decoded yet, so a draft has not read its first output. If the prompt was computed elsewhere, `hidden` are the
    hidden states, in float32, with which the draft begins: those of the last tokens before `input_id`, one for each of
    its layers that drafts another token. `before` are these tokens but the first.
    """

    draw: Draw
    seq_len: Count
    input_id: Count | None
    begins: Flag = False
    hidden: Blob = b""
    before: Ints = ()


@dataclass(frozen=True)
class Scores(Message):
    """Prompt tokens whose log-probabilities are computed with a chunk: `ids`, from position `start` on. The row of each
    is that of the token before it, so the last one may be the first token behind the chunk."""

    start: Positive
    ids: Ints
    num_top: NumTop


@dataclass(frozen=True)
class Chunk(Message):
    """Prompt tokens [start, start + len(ids)) of a row. `draws` are the choices whose first token follows them.

    A middle chunk has no draws; the last chunk of a prompt with n choices has n. From token
    `host_from` on, a transport reads the KV in host memory. `ahead` are the prompt tokens behind the chunk that a
    draft reads with it.
    """

    row: Count
    start: Count
    ids: Ints
    draws: Annotated[tuple[Draw, ...], FailFast()] = ()
    host_from: Count | None = None
    ahead: Ints = ()
    scores: Scores | None = None  # None: no log-probabilities of the prompt are asked for

    @property
    def end(self) -> int:
        """The context's length with this chunk."""
        return self.start + len(self.ids)


@dataclass(frozen=True)
class Plan(Message):
    """One launch: its chunks, and each row that decodes. A plan without rows is legal.

    With a draft it proposes `num_steps` tokens for each row, or a tree of so many levels, and the target verifies
    them. Without proposals a row draws one token. See draft_shape.py. `drafts`: some row or prompt of the launch has KV
    of the draft, and keeps it. If not, it is launched as without a draft: no row of it will ever have such KV.

    `relay`: sampled tokens are stashed for the next launch, because their choices go on decoding on this executor.
    `ships`: the executor reports each layer as soon as its KV is written, because this worker sends KV. Such a plan has
    chunks. `step`: what each rank of the group launches. None: there are no other ranks, or all launch this same plan.
    """

    ticket: Count
    num_decodes: Count = 0  # rows that decode once the changes are applied
    grants: Annotated[tuple[Grant, ...], FailFast()] = ()
    leaves: Ints = ()  # rows
    joins: Annotated[tuple[Join, ...], FailFast()] = ()
    chunks: Annotated[tuple[Chunk, ...], FailFast()] = ()
    relay: Flag = True
    ships: Flag = False
    num_steps: Count = 0
    step: StepShape | None = None
    drafts: Flag = True

    def num_tokens(self, width: int) -> int:
        """Tokens that the target computes: those of its chunks, and `width` of each row that decodes."""
        num_tokens = self.num_decodes * width
        for chunk in self.chunks:
            num_tokens += len(chunk.ids)
        return num_tokens


@dataclass(frozen=True)
class CopyPages(Message):
    """Copies page sources[i] to page targets[i] in every layer, after the launches before it and before those after."""

    ticket: Count
    sources: Ints
    targets: Ints


@dataclass(frozen=True)
class StageIn(Message):
    """Copies `pages` from host memory to the device, then `sources` to `targets`, all beside the launches.

    No launch may use these pages before Done.
    """

    ticket: Count
    pages: Ints
    sources: Ints
    targets: Ints


@dataclass(frozen=True)
class Spill(Message):
    """Copies page pages[i] to host page host_pages[i], after the launches before it and beside those after.

    No launch may write these pages, and no Fill may read the host pages, before Done.
    """

    ticket: Count
    pages: Ints
    host_pages: Ints


@dataclass(frozen=True)
class Fill(Message):
    """Copies host page host_pages[i] to page pages[i], beside the launches.

    No launch may use these pages, and no Spill may write the host pages, before Done.
    """

    ticket: Count
    host_pages: Ints
    pages: Ints


@dataclass(frozen=True)
class WriteDraft(Message):
    """Writes the KV of the draft that launches have put off; see planning/draft_writes.py."""

    ticket: Count


@dataclass(frozen=True)
class LearnGrammar(Message):
    """Compiles a grammar beside the launches. GrammarLearnt follows."""

    name: Text
    text: GrammarText


@dataclass(frozen=True)
class ForgetGrammar(Message):
    """No request needs this grammar, and no plan will name it before it is learnt again."""

    name: Text


@dataclass(frozen=True)
class MakeMask(Message):
    """Makes the mask of a row beside the launches: of a late one, or of one whose prompt is launched then. No launch in
    flight has the row. MaskReady follows. `draw` has all outputs of its answer."""

    draw: Draw


@dataclass(frozen=True)
class DropMask(Message):
    """Nobody waits for the mask of this owner any more. MaskReady may still follow."""

    row: Count
    owner_number: Count


Operation = Plan | CopyPages | StageIn | Spill | Fill | WriteDraft | LearnGrammar | ForgetGrammar | MakeMask | DropMask
OPERATIONS: Boundary[Operation] = Boundary(
    "operation", (Plan, CopyPages, StageIn, Spill, Fill, WriteDraft, LearnGrammar, ForgetGrammar, MakeMask, DropMask)
)


# ---- executor to planner ----


@dataclass(frozen=True)
class LayerWritten(Message):
    """The KV of the plan's chunks in this layer is where a transport reads it. Comes before the plan's StepResult."""

    ticket: Count
    layer: Count


@dataclass(frozen=True)
class StepResult(Message):
    """The end of a plan: rows[i] has drawn tokens[i], none or several. The draws of chunks come first.

    A result may be late: the planner drops what belongs to an owner that has given its row away. What only the next
    launch reads, such as a draft's inputs, stays on the device and is no part of it. `hidden`: of a plan that ships,
    the draft's hidden states (float32) at the end of each prompt whose first tokens are drawn; see Join.
    """

    ticket: Count
    rows: Annotated[tuple[Owner, ...], FailFast()]
    tokens: Annotated[tuple[Ints, ...], FailFast()]
    not_finite: Annotated[tuple[Owner, ...], FailFast()] = ()  # the logits behind their tokens were not finite
    stuck: Annotated[tuple[tuple[Owner, Text], ...], FailFast()] = ()  # no token may follow, and why
    late: Annotated[tuple[Owner, ...], FailFast()] = ()  # their masks were not made; see MakeMask
    error: Text = ""  # why the launch failed; "" if it did not
    hidden: Annotated[tuple[Blob, ...], FailFast()] = ()
    computed_at: Seconds | None = None  # when all layers were computed, by the executor's clock, if it can tell
    logprobs: Annotated[tuple[Logprobs | None, ...], FailFast()] = ()  # logprobs[i] are those of tokens[i]; (): none
    prompts: Annotated[tuple[tuple[Logprobs, ...], ...], FailFast()] = ()  # of each chunk with `scores`, in pieces


@dataclass(frozen=True)
class Done(Message):
    """An operation other than a Plan is over."""

    ticket: Count


@dataclass(frozen=True)
class GrammarLearnt(Message):
    """Plans may name this grammar, unless there is a `fault`: why no answer can follow it, in one sentence."""

    name: Text
    fault: Text = ""


@dataclass(frozen=True)
class MaskReady(Message):
    """The mask of MakeMask is made: a launch with this row takes it without work."""

    row: Count
    owner_number: Count


Outcome = LayerWritten | StepResult | Done | GrammarLearnt | MaskReady
OUTCOMES: Boundary[Outcome] = Boundary("outcome", (LayerWritten, StepResult, Done, GrammarLearnt, MaskReady))
