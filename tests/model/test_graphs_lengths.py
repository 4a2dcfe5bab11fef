"""Graphs for contexts of several lengths: short ones take attention one pass over each layer.

Kernels are recorded where Triton would launch them, so the sizes are those of a server.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from model.graphs import GraphedRunner, Graphs, Lanes, bucket_sizes
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from protocol.kv_layout import KvLayout, LayerLayout
from tests.doubles.hash_model import FakeRunner
from tests.model.driving import Lanes as Driven
from tests.model.driving import random_prompt
from tests.model.speculating import again

pytest.importorskip("triton")
CPU = torch.device("cpu")
NUM_LAYERS, PAGE_SIZE, MAX_BATCH = 2, 16, 256
HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 32, 8, 128, 40_960  # of an 8B model
LAYOUT = LayerLayout(KV_HEADS, HEAD_DIM, PAGE_SIZE, "bfloat16")


@dataclass
class Kernels:
    """In the place of Triton's kernels: which ones were launched."""

    launched: list[str] = field(default_factory=list)

    def named(self, name: str) -> "Kernel":
        """The kernel of this name."""
        return Kernel(name, self)

    def taken(self) -> list[str]:
        """Those since the last call."""
        found, self.launched = self.launched, []
        return found


@dataclass(frozen=True)
class Kernel:
    """One of them."""

    name: str
    kernels: Kernels

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *_, **__: self.kernels.launched.append(self.name)


def one_pass(num_passes: int = 1) -> list[str]:
    """The kernels of a forward of decodes, in order: the splits of each pass are numbered once for all layers."""
    return ["number"] * num_passes + ["splits", "combine"] * num_passes * NUM_LAYERS


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """The recorded kernels of attention."""
    from model import attention_triton  # noqa: PLC0415 - an optional package

    found = Kernels()
    for name in ("number", "splits", "combine"):
        monkeypatch.setattr(attention_triton, f"{name}_kernel", found.named(name))
    return found


@pytest.fixture
def server(kernels: Kernels) -> tuple[Graphs, PagedKv, Any]:
    """The graphs of a server, of layers that only attend, its KV and its attention."""
    from model.attention_triton import TritonAttention  # noqa: PLC0415 - an optional package

    attention = TritonAttention(HEADS, KV_HEADS, HEAD_DIM, CONTEXT, CPU)
    kv = PagedKv(KvLayout.uniform(NUM_LAYERS, KV_HEADS, HEAD_DIM, PAGE_SIZE, "bfloat16"), 2)
    q_THD = torch.zeros((264, HEADS, HEAD_DIM), dtype=torch.bfloat16)

    def compute(inp: ModelInput, kv: PagedKv) -> tuple[Tensor]:
        plan = attention.plan(inp, LAYOUT)
        for layer in range(NUM_LAYERS):
            attention.attend(q_THD[: inp.num_decodes], kv.layer(layer), plan)
        return (torch.zeros(inp.num_decodes, 1),)

    graphs = Graphs(compute, again, attention.longest_at_once)
    sizes = bucket_sizes(MAX_BATCH)
    graphs.capture(kv, Lanes(sizes[-1], CONTEXT // PAGE_SIZE, PAGE_SIZE, CPU), sizes)
    kernels.taken()
    return graphs, kv, attention


def decodes(num: int, longest: int) -> ModelInput:
    """So many, none longer than that."""
    return replace(Lanes(num, 1, PAGE_SIZE, CPU).input, max_decode_seq_len=longest)


def test_contexts_that_fit_take_one_pass_at_every_size(server: tuple[Graphs, PagedKv, Any], kernels: Kernels) -> None:
    graphs, kv, attention = server
    chance = random.Random(41)
    for size in bucket_sizes(MAX_BATCH):
        at_once = min(attention.longest_at_once(size), CONTEXT)
        assert at_once >= 16_000 or size * 16_000 > attention.max_splits * 256, "ordinary contexts fit"
        for longest in (1, at_once, chance.randint(1, at_once)):
            assert graphs.replay(decodes(size, longest), kv, None) is not None
            assert kernels.taken() == one_pass(), (size, longest)


def test_longer_contexts_take_as_many_passes_as_the_longest_of_all(
    server: tuple[Graphs, PagedKv, Any], kernels: Kernels
) -> None:
    graphs, kv, attention = server
    of_all = attention.max_splits // (CONTEXT // 256)
    for size in (128, 256):
        for longest in (attention.longest_at_once(size) + 1, CONTEXT):
            graphs.replay(decodes(size, longest), kv, None)
            assert kernels.taken() == one_pass(-(-size // of_all)) != one_pass()
    assert graphs.replay(decodes(1, CONTEXT + 1), kv, None) is None, "longer than what was captured"


def test_a_size_has_a_second_graph_only_if_that_saves_a_pass(
    server: tuple[Graphs, PagedKv, Any], kernels: Kernels
) -> None:
    graphs, _, attention = server
    counts = {size: len(graphs._graphs[size]) for size in bucket_sizes(MAX_BATCH)}
    assert counts == {size: 1 + (attention.longest_at_once(size) < CONTEXT) for size in counts}
    assert counts[1] == 1 and counts[256] == 2


class Halves(FakeRunner):
    """Two decodes of 12 tokens take one pass."""

    def longest_at_once(self, num_decodes: int) -> int | None:
        """See AttentionBackend."""
        return 24 // num_decodes


def test_tokens_are_exact_while_contexts_grow_out_of_the_shorter_graph() -> None:
    seen: list[ModelInput] = []
    fake = Halves(vocab_size=97, context_length=64, before_forward=seen.append)
    runner = GraphedRunner(fake, again)
    lanes = Driven(runner, 4, poison=True)
    for layer in range(lanes.kv.layout.num_layers):
        lanes.kv.layer(layer)[0].zero_()
    runner.capture(lanes.kv, 2, 16)
    prompts = [random_prompt(5, 97, seed) for seed in range(2)]
    both = [lanes.lane(prompt, 20) for prompt in prompts]
    for lane in both:
        lanes.step([(lane, 5)])
    seen.clear()
    for _ in range(14):
        lanes.step([], both)
    assert [inp.max_decode_seq_len for inp in seen] == [12] * 7 + [64] * 7
    assert [lane.tokens[5:] for lane in both] == [fake.expected_tokens(prompt, 15) for prompt in prompts]
    assert runner.num_replays == 14
