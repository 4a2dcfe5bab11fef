from collections.abc import Sequence

import pytest
import torch

from scheduler.execution.batches import ForwardBatch, Relay, ScheduleBatch, draws_of
from scheduler.execution.future_rows import OWNER_SHIFT
from scheduler.execution.page_table import PageTable
from scheduler.plan import Chunk, Draw, Grant, Join, Plan
from scheduler.planning.kv_manager import RowPool
from tests.scheduler.building import CPU, draw, greedy, tensors_in


class Context:
    """A row's prompt and pages, which are easy to recognise."""

    def __init__(self, draw: Draw, prompt: tuple[int, ...], pages: list[int], outputs: tuple[int, ...]) -> None:
        self.draw, self.prompt, self.pages, self.outputs = draw, prompt, pages, outputs

    def chunk(self, start: int, end: int, draws: Sequence["Context"] = ()) -> Chunk:
        return Chunk(self.draw.row, start, self.prompt[start:end], tuple(drawn.draw for drawn in draws))

    @property
    def join(self) -> Join:
        """It joins with the token that it drew last, or with one that a launch in flight draws."""
        seq_len = len(self.prompt) + max(len(self.outputs) - 1, 0)
        return Join(self.draw, seq_len, self.outputs[-1] if self.outputs else None)


class Pool:
    """Rows. Page i of the k-th context is 100 * k + i, its prompt is 1000 * k, 1000 * k + 1, ..."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.rows = RowPool(8)
        self.table = PageTable(8, 64, CPU)
        self.count = 0

    def context(
        self, prompt_len: int, outputs: tuple[int, ...] = (), choice: int = 0, num_pages: int | None = None
    ) -> Context:
        self.count += 1
        prompt = tuple(range(1000 * self.count, 1000 * self.count + prompt_len))
        pages = [100 * self.count + i for i in range(-(-(prompt_len + 20) // self.page_size))][:num_pages]
        row = self.rows.allocate()
        owner_number = self.rows.owner_number(row)
        self.table.write(Grant(row, owner_number, 0, tuple(pages)))
        return Context(draw(row, greedy(20), owner_number=owner_number, choice=choice), prompt, pages, outputs)

    def slots(self, context: Context, start: int, end: int) -> list[int]:
        size = self.page_size
        return [context.pages[position // size] * size + position % size for position in range(start, end)]

    def launch(self, chunks: Sequence[Chunk], running: ScheduleBatch | None = None) -> ForwardBatch:
        """As the executor does."""
        running = running or ScheduleBatch.of((), CPU)
        running.advance()
        return ForwardBatch.init_new(chunks, running, self.table, self.page_size)

    def relay(self, chunks: Sequence[Chunk], running: ScheduleBatch, relay: bool = True) -> Relay:
        plan = Plan(1, num_decodes=len(running), chunks=tuple(chunks), relay=relay)
        return Relay.of(plan, running)


@pytest.fixture(params=[1, 16])
def pool(request: pytest.FixtureRequest) -> Pool:
    return Pool(request.param)


def running_of(*contexts: Context) -> ScheduleBatch:
    return ScheduleBatch.of([context.join for context in contexts], CPU)


def test_extend(pool: Pool) -> None:
    a, b = pool.context(20), pool.context(5)
    chunks = [a.chunk(7, 18), b.chunk(0, 5, [b])]
    batch = pool.launch(chunks)
    inp = batch.input
    assert inp.input_ids_T.tolist() == [*range(1007, 1018), *range(2000, 2005)]
    assert inp.positions_T.tolist() == [*range(7, 18), *range(5)]
    assert inp.slots_T.tolist() == pool.slots(a, 7, 18) + pool.slots(b, 0, 5)
    assert inp.seq_lens_B.tolist() == [18, 5]
    assert (inp.extend_lens, inp.extend_seq_lens, inp.num_decodes, inp.max_decode_seq_len) == ((11, 5), (18, 5), 0, 0)
    assert inp.logit_indices_L.tolist() == [15]  # the middle chunk wants no logits
    pages = -(-18 // pool.page_size)
    assert inp.page_table_BP.shape == (2, pages)
    assert inp.page_table_BP[0].tolist() == a.pages[:pages]
    own = -(-5 // pool.page_size)
    assert inp.page_table_BP[1, :own].tolist() == b.pages[:own]
    assert draws_of(chunks) == [b.draw] and batch.decode_owners_D.tolist() == []
    assert batch.sampling.position_L.tolist() == [5]
    assert [tensor.tolist() for tensor in pool.relay(chunks, running_of(), relay=False)] == [[], [], []]


def test_only_middle_chunks_sample_nothing(pool: Pool) -> None:
    chunks = [pool.context(20).chunk(0, 9)]
    batch = pool.launch(chunks)
    assert (draws_of(chunks), batch.input.logit_indices_L.tolist()) == ([], [])
    assert {tensor.shape for tensor in batch.sampling.tensors} == {(0,)} and batch.sampling.banned is None
    assert pool.relay(chunks, running_of()).rows_L.tolist() == []  # a middle chunk does not stash


def test_n_choices_read_the_same_logits(pool: Pool) -> None:
    a = pool.context(6)
    choices = [pool.context(6, choice=choice) for choice in range(3)]
    chunks = [a.chunk(2, 6, choices)]
    batch = pool.launch(chunks)
    assert batch.input.logit_indices_L.tolist() == [3, 3, 3]
    assert draws_of(chunks) == [one.draw for one in choices]
    assert batch.sampling.params.choice_L.tolist() == [0, 1, 2]
    assert batch.sampling.position_L.tolist() == [6, 6, 6]
    assert pool.relay(chunks, running_of()).rows_L.tolist() == [one.draw.row for one in choices]


def test_mixed(pool: Pool) -> None:
    a, b, c = pool.context(9), pool.context(30, (70,)), pool.context(4)
    running = running_of(b)
    running.change((), [c.join])
    chunks = [a.chunk(0, 9, [a])]
    batch = pool.launch(chunks, running)
    inp = batch.input
    assert inp.input_ids_T.tolist() == [*range(1000, 1009), 70, -c.draw.row]
    assert inp.positions_T.tolist() == [*range(9), 30, 4]
    assert inp.slots_T.tolist() == pool.slots(a, 0, 9) + pool.slots(b, 30, 31) + pool.slots(c, 4, 5)
    assert inp.seq_lens_B.tolist() == [9, 31, 5]
    assert (inp.extend_lens, inp.num_decodes, inp.max_decode_seq_len) == ((9,), 2, 31)
    assert inp.logit_indices_L.tolist() == [8, 9, 10]
    pages = -(-31 // pool.page_size)
    assert inp.page_table_BP.shape == (3, pages)
    assert inp.page_table_BP[1].tolist() == b.pages[:pages]
    assert batch.sampling.position_L.tolist() == [9, 31, 5]
    assert (batch.decode_owners_D >> OWNER_SHIFT).tolist() == [b.draw.owner_number, c.draw.owner_number]
    relay = pool.relay(chunks, running)
    assert relay.rows_L.tolist() == [a.draw.row, b.draw.row, c.draw.row]
    assert relay.owners_L.tolist() == [request.draw.owner_number << OWNER_SHIFT for request in (a, b, c)]
    assert relay.seq_lens_L.tolist() == [9, 31, 5]


def test_nothing_is_a_batch_of_length_0(pool: Pool) -> None:
    batch = pool.launch(())
    inp = batch.input
    assert {name: tuple(tensor.shape) for name, tensor in inp.tensors.items()} == {
        "input_ids_T": (0,),
        "positions_T": (0,),
        "slots_T": (0,),
        "page_table_BP": (0, 0),
        "seq_lens_B": (0,),
        "logit_indices_L": (0,),
    }
    assert {tensor.dtype for tensor in inp.tensors.values()} == {torch.int64}
    assert (inp.extend_lens, inp.extend_seq_lens, inp.num_decodes, inp.max_decode_seq_len) == ((), (), 0, 0)
    assert {tensor.shape for tensor in (*batch.sampling.tensors, batch.decode_owners_D)} == {(0,)}
    assert [tensor.shape for tensor in pool.relay((), running_of())] == [(0,), (0,), (0,)]


def test_it_names_each_of_its_tensors(pool: Pool) -> None:
    """What it does not name, another stream may overwrite while the forward reads it."""
    a, running = pool.context(9), running_of(pool.context(30, (70,)))
    for chunks, decodes in (([a.chunk(0, 5)], None), ([], running), ([a.chunk(5, 9, [a])], running), ([], None)):
        batch = pool.launch(chunks, decodes)
        held = {id(tensor) for tensor in tensors_in(batch)}
        assert len(held) > 5 and {id(tensor) for tensor in batch.tensors} == held


@pytest.mark.parametrize("prompt_len", [15, 16, 17, 31, 32])
def test_page_edges(prompt_len: int) -> None:
    pool = Pool(16)
    context = pool.context(prompt_len, (5,))
    inp = pool.launch((), running_of(context)).input
    assert inp.page_table_BP.shape == (1, prompt_len // 16 + 1)
    assert inp.slots_T.tolist() == pool.slots(context, prompt_len, prompt_len + 1)


def test_a_launch_owns_its_tensors(pool: Pool) -> None:
    a, b = pool.context(5, (50,)), pool.context(5, (51,))
    running = running_of(a, b)
    batch = pool.launch((), running)
    relay = pool.relay((), running)
    inp = batch.input
    held = [inp.seq_lens_B, inp.page_table_BP, inp.input_ids_T, batch.sampling.position_L, *relay]
    before = [tensor.clone() for tensor in held]
    running.advance()
    running.change((a.draw.row,), ())
    pool.table.write(Grant(a.draw.row, a.draw.owner_number + 1, 0, (0,) * 20))  # its next owner's pages
    assert all(torch.equal(tensor, old) for tensor, old in zip(held, before, strict=True))


def test_chunks_wider_and_narrower_than_the_decodes_share_a_table(pool: Pool) -> None:
    """What is behind a context's own pages is page 0: padding."""
    for chunk_len, length in ((20, 3), (3, 20)):
        a, b = pool.context(chunk_len), pool.context(length, (70,))
        table = pool.launch([a.chunk(0, chunk_len, [a])], running_of(b)).input.page_table_BP
        ends = (-(-chunk_len // pool.page_size), -(-(length + 1) // pool.page_size))
        assert table.shape == (2, max(ends))
        for row, (request, end) in enumerate(zip((a, b), ends, strict=True)):
            assert table[row].tolist() == request.pages[:end] + [0] * (max(ends) - end)
