"""The first requests: no later request of any kind calls an operation of torch that they have not called.

A GPU loads a kernel by operation and dtype. So these are what a CPU can tell of it, for kernels of torch.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from model.inputs import ModelInput
from model.sampler import Sampled, sample_scored
from model.sampling_input import SamplingInput
from protocol.errors import InternalError
from protocol.logit_rules import LogitRules
from protocol.logprobs import LogprobsAsked, PromptLogprobsAsked
from protocol.messages_gateway import FinishReason, SamplingParams
from protocol.messages_group import StepShape
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution import launches
from scheduler.execution import warm_requests as warm_requests_module
from scheduler.execution.executor import Executor
from scheduler.execution.grammars import AnswerGrammars, Inline
from scheduler.execution.streams import InlineStream
from scheduler.execution.warm_requests import KINDS, WarmUp, warm_requests
from scheduler.planning.chunks import ExtendChunk
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from scheduler.planning.speculation import Speculation
from scheduler.speculation import mode
from tests.doubles.hash_model import FakeRunner
from tests.doubles.torch_operations import tensors_in
from tests.grammars import grammar_of, text_named, vocabulary
from tests.scheduler.building import CPU, FailAt, admitted, drawn, make_executor, make_planner

EVERYTHING = WarmUp.of(torch.device("cuda"), 4)  # run here on the CPU
Operation = tuple[Any, ...]  # its name, and the dtypes of its tensors
SHAPES = {"plain": NO_DRAFT, "chain": DraftShape(3), "tree": DraftShape(3, 2, 7), "layers": DraftShape(2)}
NO_KERNEL = ("alias", "detach", "_local_scalar_dense", "lift_fresh", "empty", "new_empty", "set_", "resize_")
VIEWS = (
    "view",
    "slice",
    "select",
    "expand",
    "unbind",
    "unsqueeze",
    "split",
    "t",
    "as_strided",
    "_unsafe_view",
    "permute",
)
UNNOTED = frozenset((*NO_KERNEL, *VIEWS))


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Notes the operations that are called within."""

    def __init__(self) -> None:
        super().__init__()
        self.called: set[Operation] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in UNNOTED:
            dtypes = tuple(str(tensor.dtype) for tensor in tensors_in(args))
            self.called.add((name, *dtypes))
        return func(*args, **(kwargs or {}))


NAMES = ("top-k", "top-p", "min-p", "rules", "bans", "log-probabilities")
GRAMMAR = grammar_of([(1, 2, 3) * 9, (2, 3, 1) * 9])
RULES = {
    "penalties": LogitRules(frequency_penalty=0.1, presence_penalty=-0.2, repetition_penalty=1.1),
    "bias": LogitRules(logit_bias=((5, 2.0), (7, -1.0))),
    "allowed tokens": LogitRules(allowed_token_ids=(3, 4, 5)),
    "bad words": LogitRules(bad_words=((3, 4, 5), (6,))),
}
LATER: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.7, "seed": 5},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.1},
    "all masks": {"top_k": 9, "top_p": 0.8, "min_p": 0.02},
    "no end at first": {"min_tokens": 4, "eos_token_ids": (9, 11), "stop_token_ids": (12,)},
    "a greedy one's log-probabilities": {"temperature": 0.0, "logprobs": LogprobsAsked(0)},
    "log-probabilities of what was drawn": {"logprobs": LogprobsAsked(4, processed=True)},
    **{name: {"rules": rules} for name, rules in RULES.items()},
    "a grammar": {"grammar": GRAMMAR, "eos_token_ids": (96,)},
    "a greedy grammar": {"grammar": GRAMMAR, "temperature": 0.0, "eos_token_ids": (96,)},
}


def started(kind: str = "plain", runner: FakeRunner | None = None) -> Executor:
    """An executor of 4 rows with its draft, if it has one, and with a grammar's vocabulary."""
    shape, num_layers = SHAPES[kind], 2 if kind == "layers" else 1
    seed = 1 if shape.num_steps else None
    runner = runner or FakeRunner(97, context_length=64, draft_seed=seed, num_draft_layers=num_layers)
    executor = make_executor(InlineStream(), runner=runner, max_requests=4, shape=shape)
    executor.grammars = AnswerGrammars(partial(vocabulary, 97), compiling=Inline(), masking=Inline())
    executor.warm_up(shape)
    return executor


def planner_of(executor: Executor, kind: str) -> Planner:
    """A planner that uses the draft, if there is one."""
    return make_planner(executor, speculation=Speculation(SHAPES[kind], 9) if SHAPES[kind].num_steps else None)


def served(planner: Planner, kind: str, count: int) -> set[Operation]:
    """What `count` requests of a kind call, of which the last one comes while the others decode."""
    params = SamplingParams(max_tokens=12, **LATER[kind])
    reqs: list[Req] = []
    recorder = Recorder()
    with recorder:
        if params.grammar:
            planner.grammars.ask(GRAMMAR, text_named(GRAMMAR), lambda: ())
            planner.poll()
        for number in range(count):
            req = admitted(planner, (1, 2, 3, 4 + number, 5), params, name=str(number))
            asked = PromptLogprobsAsked(2) if number else None
            planner.launch([ExtendChunk(req, 0, 5, (req,), asked=asked)], planner.decodes())
            planner.join([req])
            take(planner)
            reqs.append(req)
        for _ in range(4):
            planner.launch((), planner.decodes())
            take(planner)
        for req in reqs:
            req.finish = FinishReason.CANCELLED
            planner.release(req)
        planner.launch()
        take(planner)
        planner.collect()
    assert all(len(req.outputs) > 3 for req in reqs)
    return recorder.called


def take(planner: Planner) -> None:
    """Takes the launch that is over."""
    ((_, result),) = planner.poll()
    assert not result.error and not result.stuck
    for req, run in drawn(planner, result).items():
        req.append(run)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_later_request_calls_nothing_that_the_first_ones_have_not_called(shape: str) -> None:
    executor = started(shape)
    with Recorder() as recorder:
        warm_requests(executor, EVERYTHING, SHAPES[shape])
    planner = planner_of(executor, shape)
    for kind in LATER:
        called = served(planner, kind, 3)
        assert len(called) > 10 and called - recorder.called == set(), kind
    executor.close()


def names_of(sampling: SamplingInput) -> dict[str, Tensor]:
    """What rows ask for, and the rows that do."""
    asking = sampling.asking
    rows = {
        "top-k": asking.top_k_N,
        "top-p": asking.top_p_N,
        "min-p": asking.min_p_N,
        "rules": sampling.rules and sampling.rules.rows_N,
        "bans": sampling.banned and sampling.banned.rows_N,
        "log-probabilities": sampling.logprobs and sampling.logprobs.rows_N,
        "masks": sampling.allowed and sampling.allowed.rows_N,
    }
    return {name: rows_N for name, rows_N in rows.items() if rows_N is not None}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_kind_is_drawn_with_one_row_and_with_the_most(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_with: set[tuple[str, int]] = set()

    def noted(logits_LV: Tensor, sampling: SamplingInput, *rest: Any) -> Sampled:
        drawn_with.update((name, len(rows_N)) for name, rows_N in names_of(sampling).items())
        drawn_with.add(("greedy" if sampling.asking.all_greedy else "drawn", logits_LV.shape[0]))
        sampled: Sampled = sample_scored(logits_LV, sampling, *rest)
        return sampled

    executor = started(shape)
    for module in (launches, mode, warm_requests_module):
        monkeypatch.setattr(module, "sample_scored", noted)
    warm_requests(executor, EVERYTHING, SHAPES[shape])
    width = SHAPES[shape].num_nodes or SHAPES[shape].num_steps + 1
    wanted = ("greedy", "drawn", *NAMES)
    assert {(name, rows) for name in wanted for rows in (1, 4 * width)} | {("masks", 1), ("masks", 4)} <= drawn_with


@pytest.mark.parametrize("shape", SHAPES)
def test_page_0_alone_is_written_and_holds_zeros_and_no_row_is_left(shape: str) -> None:
    executor = started(shape)
    for layer in range(executor.kv.layout.num_layers):
        executor.kv.layer(layer)[1:] = 7.0
    warm_requests(executor, EVERYTHING, SHAPES[shape])
    for layer in range(executor.kv.layout.num_layers):
        assert (executor.kv.layer(layer)[1:] == 7.0).all() and not executor.kv.layer(layer)[0].any()
    assert not executor.running.draws and not executor.launches and executor.poll() == []
    assert not executor.page_table.req_to_page.any()


def test_all_ranks_of_a_group_run_the_same_forwards() -> None:
    seen: list[list[tuple[int, StepShape | None]]] = []
    for rank in range(2):
        of_rank: list[tuple[int, StepShape | None]] = []

        def note(inp: ModelInput, of_rank: list[tuple[int, StepShape | None]] = of_rank) -> None:
            of_rank.append((inp.input_ids_T.numel(), inp.step))

        executor = started(runner=FakeRunner(97, context_length=64, before_forward=note))
        executor.num_ranks, executor.device.rank = 2, rank
        of_rank.clear()
        warm_requests(executor, EVERYTHING)
        seen.append(of_rank)
    assert seen[0] == seen[1] and len(seen[0]) == 2 * 2 * len(KINDS) + 1
    assert all(step is not None and step.num_tokens == (size, size) for size, step in seen[0])


def test_a_launch_that_fails_is_an_error_before_ready() -> None:
    executor = started(runner=FakeRunner(97, context_length=64, before_forward=FailAt(5)))
    with pytest.raises(InternalError, match=r"before the first request .* forward 5 is broken"):
        warm_requests(executor, EVERYTHING)


def test_a_mask_that_fails_is_an_error_before_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Sampled:
        raise RuntimeError("no kernel image")

    executor = started()
    monkeypatch.setattr(warm_requests_module, "sample_scored", fail)
    with pytest.raises(InternalError, match="drawing with masks has failed: no kernel image"):
        warm_requests(executor, WarmUp.of(CPU, 4))


def test_a_device_runs_each_kind_with_one_row_and_the_most() -> None:
    cuda, kinds = torch.device("cuda"), tuple(KINDS.values())
    assert [WarmUp.of(cuda, most) for most in (1, 2, 64)] == [WarmUp(kinds, sizes) for sizes in ((1,), (1, 2), (1, 64))]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cpu_computes_one_request_that_draws_in_all_ways(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    num_forwards, drawn_with = 0, set[str]()

    def count(inp: ModelInput) -> None:
        nonlocal num_forwards
        num_forwards += inp.input_ids_T.numel() > 0

    def noted(logits_LV: Tensor, sampling: SamplingInput, *rest: Any) -> Sampled:
        drawn_with.update(names_of(sampling))
        sampled: Sampled = sample_scored(logits_LV, sampling, *rest)
        return sampled

    num_layers = 2 if shape == "layers" else 1
    seed = 1 if SHAPES[shape].num_steps else None
    runner = FakeRunner(97, context_length=64, draft_seed=seed, num_draft_layers=num_layers, before_forward=count)
    executor = started(shape, runner)
    for module in (launches, mode, warm_requests_module):
        monkeypatch.setattr(module, "sample_scored", noted)
    num_forwards = 0
    warm_requests(executor, WarmUp.of(CPU, 64), SHAPES[shape])
    assert num_forwards == (4 if SHAPES[shape].num_steps else 2), "weights are read as often as that"
    assert drawn_with == {*NAMES, "masks"}
    executor.close()
