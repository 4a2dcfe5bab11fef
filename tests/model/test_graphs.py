"""Graphs of decodes: what pads a batch changes nothing, stale inputs are not read, results are not overwritten.

On a CPU a "graph" runs what was captured again, on the same memory; on a GPU it is one.
"""

from pathlib import Path

import pytest
import torch

from model.graphs import GraphedRunner, Run, bucket_sizes
from model.graphs import Lanes as GraphLanes
from model.inputs import ModelInput
from model.kv_sizing import graph_bytes
from model.runner import ModelRunner, Runner
from tests.checkpoints import ARCHITECTURES, Architecture, make_checkpoint
from tests.doubles.hash_model import FakeRunner
from tests.model.driving import Lane, Lanes, random_prompt

MAX_PAGES = 40


def again(run: Run) -> Run:
    """Like a graph: the same work, on memory that stays where it is."""
    return run


def graphed(runner: Runner, page_size: int, max_batch: int = 20) -> tuple[GraphedRunner, Lanes]:
    found = GraphedRunner(runner, again)
    lanes = Lanes(found, page_size, poison=True)
    for layer in range(lanes.kv.layout.num_layers):
        lanes.kv.layer(layer)[0].zero_()
    found.capture(lanes.kv, max_batch, MAX_PAGES)
    assert found.num_replays == 0
    return found, lanes


def decode_together(lanes: Lanes, prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
    """Greedy tokens, `lengths[i]` of prompt i; who has enough leaves, so that the batch shrinks through the sizes."""
    running: list[tuple[Lane, int]] = []
    for prompt, length in zip(prompts, lengths, strict=True):
        lane = lanes.lane(prompt, length)
        lanes.step([(lane, len(prompt))])
        running.append((lane, len(prompt) + length))
    every = [lane for lane, _ in running]
    while going_on := [lane for lane, end in running if len(lane.tokens) < end]:
        lanes.step([], going_on)
    return [lane.tokens[len(prompt) :] for lane, prompt in zip(every, prompts, strict=True)]


@pytest.mark.parametrize(
    "max_batch, sizes",
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 4)),
        (8, (1, 2, 4, 8)),
        (9, (1, 2, 4, 8, 16)),
        (33, (1, 2, 4, 8, 16, 24, 32, 40)),
    ],
)
def test_sizes(max_batch: int, sizes: tuple[int, ...]) -> None:
    assert bucket_sizes(max_batch) == sizes


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_batch_that_shrinks_through_every_size_gives_exact_tokens(page_size: int) -> None:
    fake = FakeRunner(vocab_size=97, context_length=64)
    runner, lanes = graphed(fake, page_size)
    prompts = [random_prompt(3 + index % 5, 97, index) for index in range(11)]
    lengths = [2 + index for index in range(11)]
    tokens = decode_together(lanes, prompts, lengths)
    assert tokens == [fake.expected_tokens(prompt, count) for prompt, count in zip(prompts, lengths, strict=True)]
    assert runner.num_replays == max(lengths) - 1  # prefill draws the first


def test_padded_lanes_touch_page_0_only() -> None:
    runner, lanes = graphed(FakeRunner(vocab_size=97, context_length=64), 4)
    lane = lanes.lane(random_prompt(5, 97, 0), 4)
    two = lanes.lane(random_prompt(6, 97, 1), 4)
    three = lanes.lane(random_prompt(7, 97, 2), 4)
    for each in (lane, two, three):
        lanes.step([(each, len(each.tokens))])
    before = [lanes.kv.layer(layer).clone() for layer in range(lanes.kv.layout.num_layers)]
    lanes.step([], [lane, two, three])  # as four
    assert runner.num_replays == 1
    written = {each.pages[(each.done - 1) // 4] for each in (lane, two, three)}
    for layer, old in enumerate(before):
        same = (lanes.kv.layer(layer).view(torch.int32) == old.view(torch.int32)).flatten(1).all(1)
        assert {page for page in range(1, len(same)) if not same[page]} == written


def test_a_lane_that_somebody_has_left_is_padding() -> None:
    """Else it would go on writing where its last request did, into pages that have a new owner by now."""
    lanes, own = (
        Lanes(FakeRunner(vocab_size=97, context_length=64), 4),
        GraphLanes(4, MAX_PAGES, 4, torch.device("cpu")),
    )
    four = [lanes.lane(random_prompt(5 + seed, 97, seed), 4) for seed in range(4)]
    for each in four:
        lanes.step([(each, len(each.tokens))])
    for count in (4, 3):
        decodes = lanes.model_input([], four[:count])
        own.fill(decodes, 4)
        filled = own.first(4)
        for name, padding in (("input_ids_T", 0), ("positions_T", 0), ("slots_T", 0), ("seq_lens_B", 1)):
            column = getattr(filled, name).tolist()
            assert column == getattr(decodes, name).tolist() + [padding] * (4 - count), name
        width = decodes.page_table_BP.shape[1]
        assert torch.equal(filled.page_table_BP[:count, :width], decodes.page_table_BP)
        assert filled.page_table_BP[count:, 0].tolist() == [0] * (4 - count)


def test_graphs_of_all_sizes_share_one_buffer_of_logits() -> None:
    """A buffer for each would take 34 GB for 1,024 requests and a vocabulary of 128k."""
    runner, lanes = graphed(FakeRunner(vocab_size=97, context_length=64), 4)
    many = [lanes.lane(random_prompt(5, 97, seed), 4) for seed in range(20)]
    for each in many:
        lanes.step([(each, 5)])
    buffers = set()
    for count in (20, 9, 3, 1):
        logits_LV = runner.forward(lanes.model_input([], many[:count]), lanes.kv)
        alone_LV = runner.runner.forward(lanes.model_input([], many[:count]), lanes.kv)
        assert torch.equal(logits_LV, alone_LV)
        buffers.add((logits_LV.untyped_storage().data_ptr(), logits_LV.untyped_storage().nbytes()))
    assert runner.num_replays == 4 and len(buffers) == 1
    [(_, num_bytes)] = buffers
    assert num_bytes == bucket_sizes(20)[-1] * 97 * 4


def test_the_buffer_of_logits_is_no_larger_than_what_was_counted() -> None:
    config = FakeRunner(vocab_size=128_000, context_length=64).config
    lanes = bucket_sizes(1024)[-1]
    counted = graph_bytes(config, "bfloat16", lanes=lanes)
    assert lanes * 128_000 * (2 + 4 + 4) < counted < 2 << 30


def test_what_has_no_graph_runs_as_ever() -> None:
    seen: list[ModelInput] = []
    fake = FakeRunner(vocab_size=97, context_length=64, before_forward=seen.append)
    runner, lanes = graphed(fake, 4, max_batch=2)
    many = [lanes.lane(random_prompt(5, 97, seed), 4) for seed in range(3)]
    for each in many:
        lanes.step([(each, 5)])
    lanes.step([], many)  # more than were captured
    new = lanes.lane(random_prompt(5, 97, 9), 4)
    lanes.step([(new, 5)], many[:1])  # mixed
    runner.forward(lanes.model_input([], many[:1]), lanes.kv, lambda layer: None)  # somebody waits for layers
    other = Lanes(runner, 4, poison=True)
    alone = other.lane(random_prompt(5, 97, 1), 4)
    other.step([(alone, 5)])
    other.step([], [alone])  # other memory than was captured
    assert runner.num_replays == 0
    lanes.step([], many[:1])
    assert runner.num_replays == 1


def test_without_a_graph_when_one_cannot_be_captured_or_computes_something_else() -> None:
    def fail(run: Run) -> Run:
        raise RuntimeError("operation not permitted when stream is capturing")

    def empty(run: Run) -> Run:
        return lambda: None

    fake = FakeRunner(vocab_size=97, context_length=64)
    for make_graph in (fail, empty):
        runner = GraphedRunner(fake, make_graph)
        lanes = Lanes(runner, 4)
        runner.capture(lanes.kv, 4, MAX_PAGES)
        prompt = random_prompt(5, 97, 1)
        assert lanes.generate(prompt, 6) == fake.expected_tokens(prompt, 6)
        assert runner.num_replays == 0


def test_it_is_a_runner_in_every_other_respect() -> None:
    fake = FakeRunner()
    runner: Runner = GraphedRunner(fake)
    assert (runner.config, runner.device, runner.dtype) == (fake.config, fake.device, fake.dtype)
    assert (runner.kv_layout(4), runner.fingerprint()) == (fake.kv_layout(4), fake.fingerprint())
    assert runner.mapped_weight_bytes == runner.private_weight_bytes == 0


def test_the_real_decoder_gives_the_same_logits(tmp_path: Path) -> None:
    plain = ModelRunner.load(make_checkpoint(tmp_path / "m", "qwen3"), device="cpu", dtype="float32")
    runner, lanes = graphed(plain, 4, max_batch=5)
    prompts = [random_prompt(9, 307, seed) for seed in range(3)]
    tokens = decode_together(lanes, prompts, [6, 6, 6])
    assert tokens == [Lanes(plain, 4).generate(prompt, 6) for prompt in prompts]
    assert runner.num_replays == 5


@pytest.mark.gpu
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("page_size", [1, 16])
def test_graphs_give_the_tokens_of_the_cpu(tmp_path: Path, arch: Architecture, page_size: int) -> None:
    folder = make_checkpoint(tmp_path / arch, arch)
    on_cpu = ModelRunner.load(folder, device="cpu", dtype="float32")
    runner = GraphedRunner(ModelRunner.load(folder, device="cuda", dtype="float32", page_size=page_size))
    lanes = Lanes(runner, page_size)
    prompts = [random_prompt(5 + 7 * seed, 307, seed) for seed in range(11)]
    lengths = [4 + seed for seed in range(11)]
    runner.capture(lanes.kv, 11, MAX_PAGES * 4)
    assert decode_together(lanes, prompts, lengths) == [
        Lanes(on_cpu, page_size).generate(prompt, count) for prompt, count in zip(prompts, lengths, strict=True)
    ]
    assert runner.num_replays == max(lengths) - 1
