"""Graphs of decodes: what pads a batch changes nothing, stale inputs are not read, results are not overwritten.

On a CPU a "graph" runs what was captured again, on the same memory; on a GPU it is one.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model.cuda_capture import Run
from model.draft import first_layer
from model.graphs import GraphedDraft, GraphedRunner, bucket_sizes
from model.graphs import Lanes as GraphLanes
from model.inputs import ModelInput
from model.kv_sizing import graph_bytes
from model.runner import DraftSource, ModelRunner, Runner
from testkit.checkpoints import DENSE, OF_EXPERTS, Architecture, make_checkpoint
from tests.doubles.hash_model import FakeRunner
from tests.drafts import make_draft
from tests.model.driving import Lane, Lanes, random_prompt
from tests.model.speculating import Chain, again
from tests.model.trees import PARENTS, all_trees, paths, tree_input

MAX_PAGES = 40


def graphed(runner: Runner, page_size: int, max_batch: int = 20, *, trees: bool = False) -> tuple[GraphedRunner, Lanes]:
    found = GraphedRunner(runner, again)
    lanes = Lanes(found, page_size, poison=True)
    for layer in range(lanes.kv.layout.num_layers):
        lanes.kv.layer(layer)[0].zero_()
    found.capture(lanes.kv, max_batch, MAX_PAGES, trees=trees)
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


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("trees", [False, True])
def test_trees_come_from_graphs_that_read_tree_masks_and_chains_from_all(trees: bool, page_size: int) -> None:
    """In turns, and fewer rows after more: a mask that another forward has left is not read."""
    fake = FakeRunner(vocab_size=97, context_length=64)
    runner, lanes = graphed(fake, page_size, trees=trees)
    three = [lanes.lane(random_prompt(5 + seed, 97, seed), 20) for seed in range(3)]
    for lane in three:
        lanes.step([(lane, len(lane.tokens))])
    replays = 0
    for count in (3, 1, 2):
        decodes = three[:count]
        nodes = {lane.done: random_prompt(len(PARENTS), 97, lane.done) for lane in decodes}
        inp = all_trees([tree_input(lane, nodes[lane.done], page_size, 30) for lane in decodes])
        expected = [
            token
            for lane in decodes
            for path in paths()
            for token in fake.expected_tokens([*lane.tokens[: lane.done], *(nodes[lane.done][at] for at in path)], 1)
        ]
        assert runner.forward(inp, lanes.kv).argmax(-1).tolist() == expected
        replays += trees
        assert runner.num_replays == replays

        wanted = [fake.expected_tokens(lane.tokens, 1)[0] for lane in decodes]
        lanes.step([], decodes)
        replays += 1
        assert [lane.tokens[-1] for lane in decodes] == wanted and runner.num_replays == replays


@pytest.mark.parametrize("algorithm", ["eagle", "eagle3"])
def test_layers_of_a_draft_read_tree_masks_in_graphs(tmp_path: Path, algorithm: str) -> None:
    target = make_checkpoint(tmp_path / "target", "qwen3")
    source = DraftSource(algorithm, make_draft(tmp_path / "draft", target, algorithm, "qwen3"))
    plain = ModelRunner.load(target, device="cpu", dtype="float32", draft=source)
    one = Chain(GraphedRunner(plain, again), random_prompt(9, 307, 3), 60)
    runner = captured(one, width=8, trees=True)
    draft = runner.draft
    assert isinstance(draft, GraphedDraft)
    inp = tree_input(one.lane, random_prompt(len(PARENTS), 307, 1), 4, 30)
    chain = replace(inp, tree_starts_D=None, tree_bits_D=None)
    hidden_TE = torch.randn(len(PARENTS), 48)
    found = [first_layer(draft, each, hidden_TE, one.kv)[0].clone() for each in (inp, chain, inp)]
    assert draft.graphs[0].num_replays == 3 and not torch.allclose(found[0], found[1], atol=1e-3)
    for mine, each in zip(found, (inp, chain, inp), strict=True):
        torch.testing.assert_close(mine, first_layer(draft.draft, each, hidden_TE, one.kv)[0], rtol=1e-5, atol=1e-5)


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


def captured(one: Chain, max_batch: int = 2, width: int = 4, *, trees: bool = False) -> GraphedRunner:
    """The runner of a chain whose prompt has been computed, with graphs of the chain's memory from now on."""
    runner = one.runner
    assert isinstance(runner, GraphedRunner)
    for layer in range(one.kv.layout.num_layers):
        one.kv.layer(layer)[0].zero_()
    runner.capture(one.kv, max_batch, MAX_PAGES, width, trees=trees)
    return runner


def test_features_come_from_graphs() -> None:
    """The fake draft proposes nothing right from another row's features, or from those of an earlier launch."""
    fake = FakeRunner(vocab_size=97, context_length=256, draft_seed=1)
    one = Chain(GraphedRunner(fake, again), random_prompt(9, 97, 1), 60)
    runner = captured(one)
    steps = 0
    while len(one.tokens) < 60:
        expected = fake.expected_accepts(one.tokens, 3)
        assert one.step(3) == expected
        steps += 1
    assert runner.num_replays == steps > 5 and runner.draft == fake.draft


@pytest.mark.parametrize("algorithm", ["eagle", "eagle3"])
def test_layers_of_a_draft_come_from_graphs(tmp_path: Path, algorithm: str) -> None:
    target = make_checkpoint(tmp_path / "target", "qwen3")
    source = DraftSource(algorithm, make_draft(tmp_path / "draft", target, algorithm, "qwen3"))
    plain = ModelRunner.load(target, device="cpu", dtype="float32", draft=source)
    prompt = random_prompt(9, 307, 3)
    one, other = Chain(GraphedRunner(plain, again), prompt, 60), Chain(plain, prompt, 60)
    runner = captured(one)
    draft = runner.draft
    assert isinstance(draft, GraphedDraft)
    for _ in range(8):
        assert one.step(3) == other.step(3) and one.tokens == other.tokens
        assert torch.equal(one.hidden_1E, other.hidden_1E)
    assert (runner.num_replays, draft.graphs[0].num_replays) == (8, 8 * 3)
    # Fewer rows after more: what the others have left is not read, and padding lanes write page 0 only.
    hidden_4E = torch.randn(4, 48)
    for count in (4, 1, 3):
        inp = one.rows(random_prompt(count, 307, count), one.lane.done)
        found, wanted = (first_layer(each, inp, hidden_4E[:count], one.kv) for each in (draft, draft.draft))
        for mine, theirs in zip(found, wanted, strict=True):  # three rows are computed as four, which rounds otherwise
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    one.kv.layer(3)[1:].zero_()
    first_layer(draft, inp, hidden_4E[:3], one.kv)
    before = one.kv.layer(3)[1:].clone()
    one.kv.layer(3)[1:].zero_()
    draft.run_layer(0, inp, hidden_4E[:3], one.kv, attends=False)
    assert draft.graphs[-1].num_replays == 1
    torch.testing.assert_close(one.kv.layer(3)[1:], before, rtol=1e-5, atol=1e-5, equal_nan=True)
    before = one.kv.layer(3)[1:].view(torch.int32).clone()
    for attends in (True, False):
        draft.run_layer(0, replace(inp, slots_T=inp.slots_T * 0), hidden_4E[:3], one.kv, attends=attends)
        assert torch.equal(one.kv.layer(3)[1:].view(torch.int32), before)


def test_a_draft_without_graphs_when_its_own_cannot_be_captured(tmp_path: Path) -> None:
    """Then the target's, which have been captured before, are not used either."""
    target = make_checkpoint(tmp_path / "target", "llama")
    source = DraftSource("eagle", make_draft(tmp_path / "draft", target, "eagle"))
    plain = ModelRunner.load(target, device="cpu", dtype="float32", draft=source)
    made: list[Run] = []

    def fail_later(run: Run) -> Run:
        made.append(run)
        if len(made) > 2:
            raise RuntimeError("operation not permitted when stream is capturing")
        return run

    prompt = random_prompt(9, 307, 3)
    one, other = Chain(GraphedRunner(plain, fail_later), prompt, 60), Chain(plain, prompt, 60)
    runner = captured(one)
    assert len(made) == 3
    for _ in range(3):
        assert one.step(3) == other.step(3) and one.tokens == other.tokens
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
@pytest.mark.parametrize("arch", DENSE)
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


@pytest.mark.parametrize("arch", OF_EXPERTS)
def test_a_mixture_of_experts_decodes_without_graphs(tmp_path: Path, arch: Architecture) -> None:
    """Where they are not grouped, the host reads how many tokens each expert has, which no graph can capture."""
    plain = ModelRunner.load(make_checkpoint(tmp_path / "m", arch), device="cpu", dtype="float32")
    runner, lanes = graphed(plain, 16, max_batch=4)
    assert runner.why_none == "the host reads how many tokens each expert has" and runner.max_graphed == 0
    prompts = [random_prompt(5 + 7 * seed, 307, seed) for seed in range(4)]
    assert decode_together(lanes, prompts, [6] * 4) == [Lanes(plain, 16).generate(prompt, 6) for prompt in prompts]
    assert runner.num_replays == 0


@pytest.mark.parametrize("arch", OF_EXPERTS)
def test_grouped_experts_decode_with_graphs(
    tmp_path: Path, arch: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU with Triton the host reads nothing back."""
    monkeypatch.setattr("model.graphs.is_grouped", lambda feed, device: device.type == "cpu" and feed.count > 0)
    plain = ModelRunner.load(make_checkpoint(tmp_path / "m", arch), device="cpu", dtype="float32")
    runner, lanes = graphed(plain, 16, max_batch=4)
    assert runner.why_none == "" and runner.max_graphed == 4
    prompts = [random_prompt(5 + 7 * seed, 307, seed) for seed in range(4)]
    assert decode_together(lanes, prompts, [6] * 4) == [Lanes(plain, 16).generate(prompt, 6) for prompt in prompts]
    assert runner.num_replays == 5
