"""A draft in one call gives the bits of a draft layer by layer: forwards, chains, batches, trees, algorithms."""

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.cpu_draft import CpuDraft
from model.draft import chain_by_steps, first_layer, likeliest_by_logits
from model.inputs import ChainInput, ModelInput
from model.loaded_draft import LoadedDraft
from model.runner import DraftSource, ModelRunner
from protocol.errors import InternalError
from testkit.checkpoints import Architecture, make_checkpoint
from tests.drafts import add_mtp, make_draft
from tests.model.driving import Lanes, random_prompt

pytestmark = pytest.mark.usefixtures("rows")

VOCAB = 307
KINDS: list[tuple[str, Architecture, bool]] = [  # algorithm, family, has all that a checkpoint may leave out
    ("eagle", "llama", True),
    ("eagle", "qwen3", False),
    ("eagle3", "llama", True),
    ("eagle3", "qwen3", False),
    ("mtp", "glm4_moe", True),
    ("mtp", "qwen2", True),
]
OF_ONE_LAYER = KINDS[:5]
GUARD = 1 << 16  # bytes


@pytest.fixture
def any_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def load(folder: Path, algorithm: str, arch: Architecture, has_all: bool, *, in_c: bool = True) -> ModelRunner:
    target = make_checkpoint(folder / "target", arch)
    if algorithm == "mtp":
        num_layers = 1 if arch == "glm4_moe" else 2
        add_mtp(target, num_layers)
        source = DraftSource("mtp", target, num_layers)
    else:
        source = DraftSource(algorithm, make_draft(folder / "draft", target, algorithm, arch, has_all=has_all))
    runner = ModelRunner.load(target, device="cpu", dtype="bfloat16", draft=source, cpu_kernels=in_c)
    if in_c and not runner.packing.narrow:
        pytest.skip("this CPU has no instructions for the products")
    return runner


def draft_of(runner: ModelRunner) -> LoadedDraft:
    assert runner.draft is not None and len(runner.draft.at_once) == runner.draft.num_layers
    return runner.draft


def by_layers(draft: LoadedDraft) -> LoadedDraft:
    return replace(draft, at_once=())


def batch(runner: ModelRunner, lengths: tuple[int, ...], width: int) -> tuple[Lanes, ModelInput, ChainInput, Tensor]:
    """Requests of these lengths with KV of the draft, the next `width` slots of each as decodes and as a chain, and
    hidden states of the decodes."""
    draft, lanes = draft_of(runner), Lanes(runner, 4)
    made = [lanes.lane(random_prompt(length + width, VOCAB, length), 0) for length in lengths]
    for lane, length in zip(made, lengths, strict=True):
        inp = lanes.model_input([(lane, length)], [])
        hidden_TE = noise(length, draft, length)
        for layer in range(draft.num_layers):
            draft.run_layer(layer, inp, hidden_TE, lanes.kv)

    inputs = []
    for step in range(width):
        for lane, length in zip(made, lengths, strict=True):
            lane.done = length + step
        inputs.append(lanes.model_input([], made))
    indices_B, longest = torch.arange(len(made)), inputs[-1].max_decode_seq_len
    chain = ChainInput(
        torch.stack([inp.positions_T for inp in inputs]),
        torch.stack([inp.slots_T for inp in inputs]),
        torch.stack([inp.seq_lens_B for inp in inputs]),
        inputs[0].page_table_BP,
        longest,
        indices_B,
    )
    num = width * len(made)
    decodes = replace(
        chain.in_one_call,
        input_ids_T=torch.cat([inp.input_ids_T for inp in inputs]),
        page_table_BP=inputs[0].page_table_BP.repeat(width, 1),
        logit_indices_L=torch.arange(num),
    )
    return lanes, decodes, chain, noise(num, draft, 77)


def noise(num_rows: int, draft: LoadedDraft, seed: int) -> Tensor:
    """Hidden states as the draft reads them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((num_rows, draft.hidden_size), generator=generator).to(draft.hidden_dtype)


@pytest.mark.usefixtures("any_threads")
@pytest.mark.parametrize(("algorithm", "arch", "has_all"), KINDS)
@pytest.mark.parametrize(("lengths", "width"), [((9,), 1), ((40, 7, 33), 5), (tuple(range(2, 22)), 1)])
def test_a_forward_has_the_bits_of_one_layer_by_layer(
    tmp_path: Path, algorithm: str, arch: Architecture, has_all: bool, lengths: tuple[int, ...], width: int
) -> None:
    runner = load(tmp_path, algorithm, arch, has_all)
    draft = draft_of(runner)
    lanes, inp, _, hidden_TE = batch(runner, lengths, width)
    before = lanes.kv.device_bytes.clone()
    for layer in range(draft.num_layers):
        lanes.kv.device_bytes.copy_(before)
        expected_TE = by_layers(draft).run_layer(layer, inp, hidden_TE, lanes.kv)
        written = lanes.kv.device_bytes.clone()
        assert not torch.equal(written, before)
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            lanes.kv.device_bytes.copy_(before)
            assert torch.equal(draft.run_layer(layer, inp, hidden_TE, lanes.kv), expected_TE)
            assert torch.equal(lanes.kv.device_bytes, written)


@pytest.mark.usefixtures("any_threads")
@pytest.mark.parametrize(("algorithm", "arch", "has_all"), KINDS)
@pytest.mark.parametrize("wanted", [[4, 11], [0], [14, 3, 3], []])
def test_the_wanted_rows_have_the_likeliest_tokens_and_the_bits_of_a_forward(
    tmp_path: Path, algorithm: str, arch: Architecture, has_all: bool, wanted: list[int]
) -> None:
    runner = load(tmp_path, algorithm, arch, has_all)
    draft = draft_of(runner)
    lanes, inp, _, hidden_TE = batch(runner, (40, 7, 33), 5)
    inp = replace(inp, logit_indices_L=torch.tensor(wanted, dtype=torch.int64))
    before = lanes.kv.device_bytes.clone()
    expected = likeliest_by_logits(by_layers(draft), inp, hidden_TE, lanes.kv)
    written = lanes.kv.device_bytes.clone()
    assert not torch.equal(written, before)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        lanes.kv.device_bytes.copy_(before)
        found = draft.likeliest(inp, hidden_TE, lanes.kv)
        assert all(map(torch.equal, found, expected)) and torch.equal(lanes.kv.device_bytes, written)


def test_what_waits_is_told_before_each_call(tmp_path: Path) -> None:
    runner = load(tmp_path, "eagle", "llama", True)
    draft = draft_of(runner)
    lanes, inp, chain, hidden_TE = batch(runner, (40, 7, 33), 1)
    told: list[Tensor] = []
    runner.threads.before_long_call = lambda: told.append(lanes.kv.device_bytes.clone())
    for call in (
        lambda: draft.run_layer(0, inp, hidden_TE, lanes.kv),
        lambda: draft.likeliest(inp, hidden_TE, lanes.kv),
        lambda: draft.chain(chain, inp.input_ids_T, hidden_TE, lanes.kv),
    ):
        lanes.kv.device_bytes.zero_()
        told.clear()
        call()
        assert len(told) == 1 and not told[0].any() and lanes.kv.device_bytes.any()


@pytest.mark.parametrize("token", [-1, VOCAB, 1 << 40])
def test_a_token_that_the_target_does_not_know_is_refused_and_nothing_is_written(tmp_path: Path, token: int) -> None:
    runner = load(tmp_path, "eagle", "llama", True)
    draft = draft_of(runner)
    lanes, inp, chain, hidden_TE = batch(runner, (40, 7, 33), 1)
    ids_T = torch.tensor([3, token, 5])
    before = lanes.kv.device_bytes.clone()
    for call in (
        lambda: draft.run_layer(0, replace(inp, input_ids_T=ids_T), hidden_TE, lanes.kv),
        lambda: draft.likeliest(replace(inp, input_ids_T=ids_T), hidden_TE, lanes.kv),
        lambda: draft.chain(chain, ids_T.abs() * VOCAB, hidden_TE, lanes.kv),
    ):
        with pytest.raises(InternalError, match=f"none of its {VOCAB}"):
            call()
    assert torch.equal(lanes.kv.device_bytes, before)


@pytest.mark.parametrize(("algorithm", "arch", "has_all"), OF_ONE_LAYER)
def test_a_row_has_the_bits_that_it_has_alone(
    tmp_path: Path, algorithm: str, arch: Architecture, has_all: bool
) -> None:
    runner = load(tmp_path, algorithm, arch, has_all)
    lanes, inp, _, hidden_TE = batch(runner, (40, 7, 333), 1)
    together, _ = first_layer(draft_of(runner), inp, hidden_TE, lanes.kv)
    for row in range(3):
        one = inp.mapped(lambda column, row=row: column[row : row + 1])  # type: ignore[misc]
        alone = replace(one, num_decodes=1, logit_indices_L=torch.zeros(1, dtype=torch.int64))
        assert torch.equal(
            first_layer(draft_of(runner), alone, hidden_TE[row : row + 1], lanes.kv)[0][0], together[row]
        )


@pytest.mark.parametrize(("algorithm", "arch", "has_all"), OF_ONE_LAYER)
def test_nodes_of_trees(tmp_path: Path, algorithm: str, arch: Architecture, has_all: bool) -> None:
    runner = load(tmp_path, algorithm, arch, has_all)
    draft = draft_of(runner)
    lanes, inp, _, hidden_TE = batch(runner, (40, 7, 33), 1)
    bits_D = torch.tensor([0b1010000001, 0b10001, 1])
    masked = replace(inp, tree_starts_D=torch.tensor([30, 2, 33]), tree_bits_D=bits_D)
    expected_TE = by_layers(draft).run_layer(0, masked, hidden_TE, lanes.kv)
    assert torch.equal(draft.run_layer(0, masked, hidden_TE, lanes.kv), expected_TE)
    assert not torch.equal(draft.run_layer(0, inp, hidden_TE, lanes.kv), expected_TE)


@pytest.mark.usefixtures("any_threads")
@pytest.mark.parametrize(("algorithm", "arch", "has_all"), OF_ONE_LAYER)
@pytest.mark.parametrize(("lengths", "width"), [((9,), 4), ((40, 7, 33), 3), (tuple(range(2, 22)), 1)])
def test_a_chain_has_the_tokens_and_the_kv_of_its_steps(
    tmp_path: Path, algorithm: str, arch: Architecture, has_all: bool, lengths: tuple[int, ...], width: int
) -> None:
    runner = load(tmp_path, algorithm, arch, has_all)
    draft = draft_of(runner)
    lanes, inp, chain, hidden_TE = batch(runner, lengths, width)
    first_B, hidden_BE = inp.input_ids_T[: len(lengths)].clone(), hidden_TE[: len(lengths)]
    first_B[1:2] = -1  # of a row without proposals
    before = lanes.kv.device_bytes.clone()
    expected_SB = chain_by_steps(by_layers(draft), chain, first_B, hidden_BE, lanes.kv)
    written = lanes.kv.device_bytes.clone()
    assert expected_SB.shape == (1 + width, len(lengths)) and not torch.equal(written, before)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        lanes.kv.device_bytes.copy_(before)
        kept_BE = hidden_BE.clone()
        assert torch.equal(draft.chain(chain, first_B, hidden_BE, lanes.kv), expected_SB)
        assert torch.equal(lanes.kv.device_bytes, written) and torch.equal(hidden_BE, kept_BE)


@pytest.mark.parametrize(("algorithm", "arch", "has_all"), OF_ONE_LAYER)
def test_c_works_within_the_memory_that_it_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, arch: Architecture, has_all: bool
) -> None:
    """Experts work behind the other values of a layer, and more rows may be wanted than there are."""
    runner = load(tmp_path, algorithm, arch, has_all)
    draft = draft_of(runner)
    lanes, inp, chain, hidden_TE = batch(runner, tuple(range(2, 22)), 2)
    wanted = replace(inp, logit_indices_L=torch.arange(60) % 40)
    behind, empty = list[Tensor](), torch.empty

    def guarded(size: Any, *, dtype: torch.dtype = torch.float32) -> Tensor:
        if dtype != torch.uint8:
            return empty(size, dtype=dtype)
        memory = empty(size + GUARD, dtype=dtype)
        behind.append(memory[size:].fill_(0xA5))
        return memory[:size]

    monkeypatch.setattr(torch, "empty", guarded)
    draft.run_layer(0, inp, hidden_TE, lanes.kv)
    draft.likeliest(wanted, hidden_TE, lanes.kv)
    draft.chain(chain, inp.input_ids_T[:20], hidden_TE[:20], lanes.kv)
    assert len(behind) == 3 and all(bool((each == 0xA5).all()) for each in behind)


def test_no_rows_have_no_proposals(tmp_path: Path) -> None:
    runner = load(tmp_path, "eagle", "llama", True)
    lanes, _, chain, hidden_TE = batch(runner, (9,), 2)
    empty_SB, indices_B = chain.slots_SB[:, :0], chain.indices_B[:0]
    none = ChainInput(empty_SB, empty_SB, empty_SB, chain.page_table_BP[:0], 1, indices_B)
    assert draft_of(runner).chain(none, indices_B, hidden_TE[:0], lanes.kv).shape == (3, 0)


@pytest.mark.parametrize(
    ("logits", "ids"),
    [
        ([1.0, 3.0, 3.0, 2.0], None),
        ([3.0, 1.0, 3.0, 3.0], [9, 7, 5, 6]),
        ([1.0, float("nan"), 9.0, float("nan")], None),
        ([float("nan"), float("nan"), 9.0, 1.0], [4, 2, 1, 0]),
        ([float("-inf")] * 4, None),
        ([-0.0, 0.0, -1.0, 0.0], [3, 2, 1, 0]),
    ],
)
def test_the_likeliest_token_is_that_of_argmax(
    tmp_path: Path, rows: torch.dtype, logits: list[float], ids: list[int] | None
) -> None:
    """Of equals the lowest of the target's ids, and what is not a number before all numbers."""
    runner = load(tmp_path, "eagle", "llama", True)
    (at_once,) = draft_of(runner).at_once
    values_N = torch.tensor(logits, dtype=rows)
    known = torch.tensor(ids if ids is not None else range(4))
    parts = replace(at_once.parts, target_ids_N=None if ids is None else known)
    in_c = parts.in_c(at_once.in_c.layer)
    in_c.head.outputs = 4
    find = at_once.kernels.library.likeliest
    find.restype = ctypes.c_int64
    found = find(ctypes.byref(in_c), ctypes.c_void_p(values_N.data_ptr()))
    whole_V = torch.full((10,), float("-inf")).index_copy_(0, known, values_N.float())
    expected = int(whole_V.argmax()) if not bool((values_N == float("-inf")).all()) else int(known.min())
    assert found == expected


def test_chunks_and_forwards_that_tell_their_layers_run_layer_by_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(tmp_path, "eagle", "llama", True)
    draft = draft_of(runner)
    lanes, inp, _, hidden_TE = batch(runner, (9,), 1)
    calls, run = list[int](), CpuDraft.run

    def counted(self: CpuDraft, *args: Any) -> Tensor:
        calls.append(1)
        return run(self, *args)

    monkeypatch.setattr(CpuDraft, "run", counted)
    expected_TE = draft.run_layer(0, inp, hidden_TE, lanes.kv)
    assert len(calls) == 1
    told = list[int]()
    assert torch.equal(draft.run_layer(0, inp, hidden_TE, lanes.kv, told.append), expected_TE)
    draft.run_layer(0, inp, hidden_TE, lanes.kv, attends=False)
    lane = lanes.lane(random_prompt(5, VOCAB, 5), 0)
    draft.run_layer(0, lanes.model_input([(lane, 5)], []), noise(5, draft, 1), lanes.kv)
    assert told == [draft.first_layer] and len(calls) == 1


@pytest.mark.parametrize("algorithm", ["eagle", "eagle3"])
def test_without_kernels_a_chain_goes_step_by_step(tmp_path: Path, algorithm: str) -> None:
    runner = load(tmp_path, algorithm, "qwen3", True, in_c=False)
    assert isinstance(runner.draft, LoadedDraft) and not runner.draft.at_once
