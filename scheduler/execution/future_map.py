"""The FutureMap relays values between launches without the host: tokens, and with speculation lengths and draft inputs.

    publish   values that the scheduler needs: lengths. The forward stream records an event behind them.
    stash     values that only the next forward needs: tokens, draft inputs. The forward stream keeps the order.

Every buffer has an entry for each row of the row pool; row 0 is padding. A value comes with its row's owner number, so
that no owner of a row reads what a former owner has left. Every call returns first if it is given no rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Final

import torch
from torch import Tensor

from model.inputs import int64_column
from protocol.errors import InternalError
from scheduler.execution.batches import ScheduleBatch
from scheduler.execution.future_rows import OWNER_SHIFT, DraftInput, owners_of
from scheduler.execution.streams import Event, Stream
from scheduler.plan import Join

POISON: Final = torch.iinfo(torch.int64).min
NO_PROPOSAL: Final = -1  # in topk_index: nothing is proposed


@dataclass(frozen=True)
class DraftExtras:
    """What a draft needs for its next step, of N rows: K proposals, their probabilities, hidden features of size E.

    A draft of J layers has features (N, J, E), and the J - 1 tokens before the last one; see speculation/layers.py.

    None: this draft has no use for it, or this launch has not computed it.
    """

    topk_index_NK: Tensor | None = None
    topk_p_NK: Tensor | None = None
    hidden_NE: Tensor | None = None
    before_NK: Tensor | None = None

    @property
    def present(self) -> Iterator[tuple[str, Tensor]]:
        """Those that it carries, with their names."""
        return ((name, value) for name, value in vars(self).items() if value is not None)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those that it carries."""
        return tuple(value for _, value in self.present)

    def replaced(self, rows_N: Tensor, other: "DraftExtras") -> "DraftExtras":
        """With the other's N rows in the place of the rows `rows_N`; they carry the same kinds."""
        pairs = zip(self.present, other.present, strict=True)
        return DraftExtras(**{name: value.index_copy(0, rows_N, theirs) for (name, value), (_, theirs) in pairs})

    def only_for(self, drafts_N: Tensor | None) -> "DraftExtras":
        """Without proposals for rows where `drafts_N` is False; None: with all of them."""
        assert self.topk_index_NK is not None
        if drafts_N is None:
            return self
        return replace(self, topk_index_NK=self.topk_index_NK.where(drafts_N[:, None], NO_PROPOSAL))

    def followed_by(self, other: "DraftExtras") -> "DraftExtras":
        """Of these rows, then of the other's, which carry the same kinds."""
        pairs = zip(self.present, other.present, strict=True)
        return DraftExtras(**{name: torch.cat((value, theirs)) for (name, value), (_, theirs) in pairs})


@dataclass(frozen=True)
class _ExtraBuffer:
    """One kind of extra: its value by row, and the owner for whom it was stashed."""

    values: Tensor  # (rows, *shape of one row's value)
    owners: Tensor  # (rows,) int64, from owners_of; POISON for nobody

    @staticmethod
    def for_payload(payload: Tensor, num_rows: int) -> "_ExtraBuffer":
        with torch.inference_mode(False):  # later writes may come from outside of it
            values = torch.zeros((num_rows, *payload.shape[1:]), dtype=payload.dtype, device=payload.device)
            return _ExtraBuffer(values, torch.full((num_rows,), POISON, dtype=torch.int64, device=payload.device))


@dataclass(eq=False)
class _Gather:
    """Lengths on their way from the buffer to a batch. The last two are filled by the schedule stream."""

    rows_B: Tensor
    owners_B: Tensor
    buffer: Tensor
    seq_lens_B: Tensor = field(default_factory=lambda: torch.empty(0))
    on_host: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What the schedule stream reads."""
        return self.rows_B, self.owners_B, self.buffer


class FutureMap:
    """`output_tokens_buf` and `new_seq_lens_buf` are (rows,) int64.

    Their low OWNER_SHIFT bits hold the token or the length, the others the row's owner number. The buffers of draft
    inputs are made by the first payload that carries each.
    """

    def __init__(self, num_rows: int, device: torch.device, debug: bool = False) -> None:
        self.output_tokens_buf = torch.full((num_rows,), POISON, dtype=torch.int64, device=device)
        self.output_tokens_buf[0] = 0
        self.new_seq_lens_buf = torch.full((num_rows,), POISON, dtype=torch.int64, device=device)
        self._extras: dict[str, _ExtraBuffer] = {}  # by field of DraftExtras
        self._publish_ready: Event | None = None  # behind the newest publish, until a batch has taken it
        self._seeds: list[Tensor] = []  # what the schedule stream may still read
        self._debug = debug

    # ---- tokens ----

    def stash(self, rows_N: Tensor, tokens: Tensor, owners_N: Tensor, extras: DraftExtras | None = None) -> None:
        """Stores the next input token of each row. Runs on the forward stream, after sampling.

        `tokens` is (N,) or (N, 1), any int type. `owners_N` is (N,) int64 from owners_of.
        """
        if rows_N.numel() == 0:
            return
        self.output_tokens_buf.index_copy_(0, rows_N, tokens.reshape(-1).to(torch.int64) + owners_N)
        if extras is not None:
            self.stash_extras(rows_N, extras, owners_N)

    def resolve_future(self, input_ids_T: Tensor, owners_B: Tensor) -> Tensor:
        """`input_ids_T` with every `-row` replaced by the row's token. Runs on the forward stream, before the model.

        Sentinels are among the last B ids, those of the decodes. `owners_B` (B,) is as in `stash`, for their rows.
        InternalError (on CUDA a device-side assertion) when a row was not written, or written for another owner.
        """
        num_decodes = owners_B.shape[0]
        if num_decodes == 0:
            return input_ids_T

        num_prompt = input_ids_T.shape[0] - num_decodes
        ids_B = input_ids_T[num_prompt:] if num_prompt else input_ids_T
        rows_B = (-ids_B).clamp(min=0)  # 0 where the host knew the token
        held_B = self.output_tokens_buf.index_select(0, rows_B)
        resolved_B = torch.where(ids_B >= 0, ids_B, held_B - owners_B)

        excess_B = resolved_B >> OWNER_SHIFT  # 0 if the token was stashed for this owner
        is_wrong = excess_B.any()
        if is_wrong.is_cuda:
            torch._assert_async(~is_wrong, "a launch reads a token that no launch has stashed for its request")
        elif is_wrong:
            wrong_B = excess_B != 0
            raise _refusal(rows_B[wrong_B], held_B[wrong_B], owners_B[wrong_B])

        if self._debug:
            self.output_tokens_buf[rows_B[rows_B > 0]] = POISON
        return torch.cat((input_ids_T[:num_prompt], resolved_B)) if num_prompt else resolved_B

    # ---- draft inputs ----

    def stash_extras(self, rows_N: Tensor, extras: DraftExtras, owners_N: Tensor) -> None:
        """Stores draft inputs of the rows. Runs on the forward stream, for rows of a PREBUILT batch too.

        A buffer is left as it was if `extras` does not carry its values.
        """
        if rows_N.numel() == 0:
            return
        for name, payload in extras.present:
            if name not in self._extras:
                self._extras[name] = _ExtraBuffer.for_payload(payload, len(self.output_tokens_buf))
            buffer = self._extras[name]
            buffer.values.index_copy_(0, rows_N, payload.to(buffer.values.dtype))
            buffer.owners.index_copy_(0, rows_N, owners_N)

    def resolve_extras(self, rows_N: Tensor, owners_N: Tensor) -> DraftExtras:
        """The draft inputs of the rows. Runs on the forward stream, before the draft. `owners_N` is as in `stash`.

        A row has none if its owner has not stashed all kinds since the last call that named the row. Its topk_index is
        NO_PROPOSAL, its other values are 0. Before the first payload, topk_index is (N, 1) and the others are None.
        """
        num_rows = rows_N.numel()
        if num_rows == 0:
            return DraftExtras()

        extras = {name: buffer.values.index_select(0, rows_N) for name, buffer in self._extras.items()}
        are_own = [buffer.owners.index_select(0, rows_N) == owners_N for buffer in self._extras.values()]
        has_all_N = reduce(torch.logical_and, are_own) if are_own else None
        if has_all_N is not None and not (has_all_N.is_cpu and has_all_N.all()):  # a device would have to be waited for
            for name, values in extras.items():
                has_all = has_all_N.view(-1, *[1] * (values.dim() - 1))
                extras[name] = torch.where(has_all, values, NO_PROPOSAL if name == "topk_index_NK" else 0)

        if (proposals := self._extras.get("topk_index_NK")) is None:
            extras["topk_index_NK"] = torch.full((num_rows, 1), NO_PROPOSAL, device=rows_N.device)
        else:  # they are those of this step: a later one must not read them
            proposals.owners.index_fill_(0, rows_N, POISON)
        return DraftExtras(**extras)

    # ---- lengths ----

    def publish(self, rows_N: Tensor, seq_lens_N: Tensor, owners_N: Tensor) -> None:
        """Stores the lengths after a launch. Runs on the forward stream, before the draft extends. See `expect`.

        `seq_lens_N` is (N,) or (N, 1), any int type. A launch that has failed publishes the lengths that it was given.
        """
        if rows_N.numel() == 0:
            return
        self.new_seq_lens_buf.index_copy_(0, rows_N, seq_lens_N.reshape(-1).to(torch.int64) + owners_N)

    def expect(self, publish_ready: Event) -> None:
        """The stream has recorded `publish_ready` behind the newest publish, whether or not that had rows.

        A publish that nobody has read is superseded: the stream comes to the newer one later.
        """
        self._publish_ready = publish_ready

    def is_ready(self, batch: ScheduleBatch) -> bool:
        """Whether resolve_seq_lens_cpu would not block. InternalError if it would block for ever."""
        return not _awaits(batch) or self._newest_publish(batch).done()

    def seed_seq_lens(self, joins: Sequence[Join], schedule: Stream) -> None:
        """Stores the lengths of rows that join with a token that the host knows, PREBUILT ones above all.

        No launch may still write these rows. There is no event: the reader is on the same stream.
        """
        known = [join for join in joins if join.input_id is not None]
        if not known:
            return
        device = self.new_seq_lens_buf.device
        rows_N = int64_column([join.draw.row for join in known], device)
        held_N = int64_column([join.seq_len for join in known], device) + owners_of([j.draw for j in known], device)
        self._seeds += [rows_N, held_N]
        schedule.launch([_seed], self.new_seq_lens_buf, rows_N, held_N)

    def resolve_seq_lens_cpu(self, batch: ScheduleBatch, schedule: Stream) -> None:
        """Replaces the batch's lengths, on the device and on the host, by those published or seeded for its rows.

        Does nothing for a batch without rows, or without speculation. Called once for each launch, before its inputs
        are made. InternalError if a length is missing, belongs to another owner, or is not above 0.
        """
        if batch.spec_info is None or not len(batch):
            return

        if _awaits(batch):
            schedule.wait(self._newest_publish(batch))
            self._publish_ready = None
        gather = _Gather(batch.spec_info.future_indices_B, batch.members.owners_B, self.new_seq_lens_buf)
        schedule.launch([partial(self._gather_seq_lens, schedule)], gather)
        schedule.record().synchronize()
        self._seeds.clear()

        seq_lens = schedule.read_host(gather.on_host)
        for draw, seq_len in zip(batch.draws, seq_lens, strict=True):
            if not 0 < seq_len < 1 << OWNER_SHIFT:
                raise InternalError(f"row {draw.row} of owner {draw.owner_number} has no length: none was published")
        batch.set_seq_lens(gather.seq_lens_B, seq_lens)
        batch.spec_info = DraftInput.known(batch.spec_info.future_indices_B)

    def _newest_publish(self, batch: ScheduleBatch) -> Event:
        if self._publish_ready is None:
            rows = [draw.row for draw in batch.draws]
            raise InternalError(f"rows {rows} wait for their lengths, but nothing was published since the last wait")
        return self._publish_ready

    def _gather_seq_lens(self, schedule: Stream, gather: _Gather) -> None:
        """On the schedule stream."""
        gather.seq_lens_B = gather.buffer.index_select(0, gather.rows_B) - gather.owners_B
        gather.on_host = schedule.to_host(gather.seq_lens_B)
        if self._debug:
            gather.buffer[gather.rows_B] = POISON


def _seed(buffer: Tensor, rows_N: Tensor, held_N: Tensor) -> None:
    buffer[rows_N] = held_N


def _awaits(batch: ScheduleBatch) -> bool:
    """Whether a launch publishes lengths of the batch."""
    return batch.spec_info is not None and batch.spec_info.is_pending


def _refusal(rows_N: Tensor, held_N: Tensor, owners_N: Tensor) -> InternalError:
    """The error for rows that hold no token, or another owner's token."""
    rows, held = rows_N.tolist(), held_N.tolist()
    if unwritten := [row for row, value in zip(rows, held, strict=True) if value < 0]:
        return InternalError(f"a launch reads tokens of rows {unwritten}, which no launch has stashed")
    owner = int(owners_N[0]) >> OWNER_SHIFT
    return InternalError(f"row {rows[0]} of owner {owner} holds a token of owner {held[0] >> OWNER_SHIFT}")
