from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest
import torch

from model.sampler import SamplingInput
from scheduler.forward_batch import ExtendChunk, ForwardBatch, LaunchPlan
from scheduler.kv_book import Holding
from scheduler.page_table import OWNER_SHIFT, PageTable
from scheduler.req import Req
from scheduler.row_pool import RowPool
from scheduler.schedule_batch import ScheduleBatch
from tests.scheduler.building import CPU, greedy, make_req


class Pool:
    """Rows, with requests whose pages are easy to recognise: page i of the k-th request is 10 * k + i."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.rows = RowPool(8)
        self.table = PageTable(8, 64, CPU)
        self.count = 0

    def req(self, prompt_len: int, outputs: tuple[int, ...] = (), choice: int = 0) -> Req:
        self.count += 1
        req = make_req(tuple(range(1000 * self.count, 1000 * self.count + prompt_len)), greedy(20), choice)
        pages = [100 * self.count + i for i in range(-(-(prompt_len + 20) // self.page_size))]
        row = self.rows.allocate()
        self.table.write(row, pages)
        req.holding, req.outputs = Holding(row, self.rows.generation(row), pages), list(outputs)
        return req

    def slots(self, req: Req, start: int, end: int) -> list[int]:
        size = self.page_size
        return [req.held.pages[position // size] * size + position % size for position in range(start, end)]

    def launch(self, plan: LaunchPlan) -> ForwardBatch:
        return ForwardBatch.init_new(plan, self.table, self.page_size, CPU)


@pytest.fixture(params=[1, 16])
def pool(request: pytest.FixtureRequest) -> Pool:
    return Pool(request.param)


def sampling_of(batch: ForwardBatch) -> SamplingInput:
    assert batch.sampling is not None
    return batch.sampling


def test_extend(pool: Pool) -> None:
    a, b = pool.req(20), pool.req(5)
    plan = LaunchPlan((ExtendChunk(a, 7, 18), ExtendChunk(b, 0, 5, (b,))), None, relay=False)
    batch = pool.launch(plan)
    inp = batch.input
    assert inp.input_ids_T.tolist() == [*range(1007, 1018), *range(2000, 2005)]
    assert inp.positions_T.tolist() == [*range(7, 18), *range(5)]
    assert inp.slots_T.tolist() == pool.slots(a, 7, 18) + pool.slots(b, 0, 5)
    assert inp.seq_lens_B.tolist() == [18, 5]
    assert (inp.extend_lens, inp.extend_seq_lens, inp.num_decodes, inp.max_decode_seq_len) == ((11, 5), (18, 5), 0, 0)
    assert inp.logit_indices_L.tolist() == [15]  # the middle chunk wants no logits
    pages = -(-18 // pool.page_size)
    assert inp.page_table_BP.shape == (2, pages)
    assert inp.page_table_BP[0].tolist() == a.held.pages[:pages]
    own = -(-5 // pool.page_size)
    assert inp.page_table_BP[1, :own].tolist() == b.held.pages[:own]
    assert (batch.samples, batch.has_sentinels) == ((b,), False)
    assert sampling_of(batch).position_L.tolist() == [5]
    assert (batch.stash_rows_L.tolist(), batch.stash_owners_L.tolist()) == ([], [])  # no relay


def test_only_middle_chunks_sample_nothing(pool: Pool) -> None:
    a = pool.req(20)
    batch = pool.launch(LaunchPlan((ExtendChunk(a, 0, 9),), None))
    assert (batch.sampling, batch.samples, batch.input.logit_indices_L.tolist()) == (None, (), [])
    assert batch.stash_rows_L.tolist() == []  # a middle chunk does not stash


def test_n_choices_read_the_same_logits(pool: Pool) -> None:
    a = pool.req(6)
    choices = tuple(pool.req(6, choice=choice) for choice in range(3))
    batch = pool.launch(LaunchPlan((ExtendChunk(a, 2, 6, choices),), None))
    assert batch.input.logit_indices_L.tolist() == [3, 3, 3]
    assert batch.samples == choices
    assert sampling_of(batch).params.choice_L.tolist() == [0, 1, 2]
    assert sampling_of(batch).position_L.tolist() == [6, 6, 6]
    assert batch.stash_rows_L.tolist() == [req.held.row for req in choices]


def test_decode(pool: Pool) -> None:
    a, b = pool.req(16, (50,)), pool.req(3, (60, 61))
    running = ScheduleBatch.prebuilt([a, b], CPU)
    running.advance()
    batch = pool.launch(LaunchPlan((), running))
    inp = batch.input
    assert inp.input_ids_T.tolist() == [50, 61]
    assert inp.positions_T.tolist() == [16, 4]
    assert inp.slots_T.tolist() == pool.slots(a, 16, 17) + pool.slots(b, 4, 5)
    assert inp.seq_lens_B.tolist() == [17, 5]
    assert (inp.num_decodes, inp.max_decode_seq_len, inp.extend_lens) == (2, 17, ())
    assert inp.logit_indices_L.tolist() == [0, 1]
    assert sampling_of(batch).position_L.tolist() == [17, 5]
    assert batch.samples == (a, b)
    assert (batch.decode_owners_B >> OWNER_SHIFT).tolist() == [a.held.generation, b.held.generation]
    assert batch.stash_rows_L.tolist() == [a.held.row, b.held.row]
    assert batch.has_sentinels


def test_mixed(pool: Pool) -> None:
    a, b, c = pool.req(9), pool.req(30, (70,)), pool.req(4)
    running = ScheduleBatch.prebuilt([b], CPU)
    running.merge(ScheduleBatch.launched([c], CPU))
    running.advance()
    batch = pool.launch(LaunchPlan((ExtendChunk(a, 0, 9, (a,)),), running))
    inp = batch.input
    assert inp.input_ids_T.tolist() == [*range(1000, 1009), 70, -c.held.row]
    assert inp.positions_T.tolist() == [*range(9), 30, 4]
    assert inp.slots_T.tolist() == pool.slots(a, 0, 9) + pool.slots(b, 30, 31) + pool.slots(c, 4, 5)
    assert inp.seq_lens_B.tolist() == [9, 31, 5]
    assert (inp.extend_lens, inp.num_decodes, inp.max_decode_seq_len) == ((9,), 2, 31)
    assert inp.logit_indices_L.tolist() == [8, 9, 10]
    pages = -(-31 // pool.page_size)
    assert inp.page_table_BP.shape == (3, pages)
    assert inp.page_table_BP[1].tolist() == b.held.pages[:pages]
    assert batch.samples == (a, b, c)
    assert sampling_of(batch).position_L.tolist() == [9, 31, 5]
    assert (batch.decode_owners_B >> OWNER_SHIFT).tolist() == [b.held.generation, c.held.generation]


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Every tensor of a dataclass or a tuple, in it or in a part of it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors_in(part)
    elif is_dataclass(value) and not isinstance(value, Req):
        for each in fields(value):
            yield from tensors_in(getattr(value, each.name))


@pytest.mark.parametrize("relay", [True, False])
def test_it_names_each_of_its_tensors(pool: Pool, relay: bool) -> None:
    """What it does not name, another stream may overwrite while the forward reads it."""
    a, b = pool.req(9), pool.req(30, (70,))
    running = ScheduleBatch.prebuilt([b], CPU)
    running.advance()
    for plan in (
        LaunchPlan((ExtendChunk(a, 0, 5),), None, relay),
        LaunchPlan((), running, relay),
        LaunchPlan((ExtendChunk(a, 5, 9, (a,)),), running, relay),
    ):
        batch = pool.launch(plan)
        held = {id(tensor) for tensor in tensors_in(batch)}
        assert len(held) > 5 and {id(tensor) for tensor in batch.tensors} == held


@pytest.mark.parametrize("prompt_len", [15, 16, 17, 31, 32])
def test_page_edges(prompt_len: int) -> None:
    pool = Pool(16)
    req = pool.req(prompt_len, (5,))
    running = ScheduleBatch.prebuilt([req], CPU)
    running.advance()
    inp = pool.launch(LaunchPlan((), running)).input
    assert inp.page_table_BP.shape == (1, prompt_len // 16 + 1)
    assert inp.slots_T.tolist() == pool.slots(req, prompt_len, prompt_len + 1)


def test_a_launch_owns_its_tensors(pool: Pool) -> None:
    a, b = pool.req(5, (50,)), pool.req(5, (51,))
    running = ScheduleBatch.prebuilt([a, b], CPU)
    running.advance()
    batch = pool.launch(LaunchPlan((), running))
    held = [batch.input.seq_lens_B, batch.input.page_table_BP, batch.input.input_ids_T, sampling_of(batch).position_L]
    before = [tensor.clone() for tensor in held]
    running.advance()
    running.filter([1])
    pool.table.req_to_page[a.held.row] = 0  # its next owner's table
    assert all(torch.equal(tensor, old) for tensor, old in zip(held, before, strict=True))


def test_min_tokens_bans_endings_of_the_row_that_asks(pool: Pool) -> None:
    a, b = pool.req(5, (50,)), pool.req(5)
    b.sampling = greedy(9, min_tokens=1, eos=(7,))
    running = ScheduleBatch.prebuilt([a], CPU)
    running.advance()
    batch = pool.launch(LaunchPlan((ExtendChunk(b, 0, 5, (b,)),), running))
    banned = sampling_of(batch).banned
    assert banned is not None
    assert (banned.rows_N.tolist(), banned.ids_NE.tolist(), banned.until_N.tolist()) == ([0], [[7]], [6])
    assert {id(tensor) for tensor in (banned.rows_N, banned.ids_NE, banned.until_N)} <= set(map(id, batch.tensors))


def test_the_page_table_is_kept_until_somebody_joins_or_leaves_or_it_is_too_narrow() -> None:
    pool = Pool(4)
    a, b, c = pool.req(2, (50,)), pool.req(1, (51,)), pool.req(3, (52,))
    running = ScheduleBatch.prebuilt([a, b], CPU)

    def table() -> torch.Tensor:
        running.advance()
        inp = pool.launch(LaunchPlan((), running)).input
        lens = inp.seq_lens_B.tolist()
        assert inp.slots_T.tolist() == [pool.slots(r, n - 1, n)[0] for r, n in zip(running.reqs, lens, strict=True)]
        for row, req in enumerate(running.reqs):
            assert inp.page_table_BP[row].tolist() == req.held.pages[: inp.page_table_BP.shape[1]]
        return inp.page_table_BP

    first = table()  # contexts of 3 and 2 tokens: one page
    assert table() is first
    wider = table()  # a fifth token
    assert (first.shape, wider.shape) == ((2, 1), (2, 2))
    running.merge(ScheduleBatch.prebuilt([c], CPU))
    joined = table()
    assert joined.shape == (3, 2)
    running.filter([1, 2])
    left = table()
    assert left.shape == (2, 2) and left is not joined


def test_a_page_added_to_a_row_is_in_the_next_launch_and_not_in_the_one_before() -> None:
    """The other request is longer, so the table is wide enough and would be kept."""
    pool = Pool(4)
    short, long = pool.req(3, (50,)), pool.req(9, (51,))
    held = short.held
    added = held.pages[1:2]
    del held.pages[1:]
    pool.table.write(held.row, [0] * 64)
    pool.table.write(held.row, held.pages)

    running = ScheduleBatch.prebuilt([short, long], CPU)
    running.advance()
    before = pool.launch(LaunchPlan((), running)).input.page_table_BP
    held.pages.extend(added)
    pool.table.grow(held.row, added, 1)
    running.advance()
    after = pool.launch(LaunchPlan((), running)).input
    assert before[0].tolist() == [*held.pages[:1], 0, 0]
    assert after.page_table_BP[0, :2].tolist() == held.pages
    assert after.slots_T.tolist() == [pool.slots(short, 4, 5)[0], pool.slots(long, 10, 11)[0]]


def test_chunks_wider_and_narrower_than_the_decodes_share_a_table(pool: Pool) -> None:
    """What is behind a request's own pages is page 0: padding."""
    for chunk_len, context in ((20, 3), (3, 20)):
        a, b = pool.req(chunk_len), pool.req(context, (70,))
        running = ScheduleBatch.prebuilt([b], CPU)
        running.advance()
        table = pool.launch(LaunchPlan((ExtendChunk(a, 0, chunk_len, (a,)),), running)).input.page_table_BP
        ends = (-(-chunk_len // pool.page_size), -(-(context + 1) // pool.page_size))
        assert table.shape == (2, max(ends))
        for row, (req, end) in enumerate(zip((a, b), ends, strict=True)):
            assert table[row].tolist() == req.held.pages[:end] + [0] * (max(ends) - end)
