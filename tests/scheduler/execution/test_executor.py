"""The executor: plans in, outcomes out. Most tests feed it through a planner, as workers do."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model.inputs import ModelInput
from model.paged_kv import PagedKv
from protocol.messages_group import StepShape
from scheduler.execution.batches import ForwardBatch
from scheduler.plan import Grant, Join, Plan, StepResult
from scheduler.planning.chunks import ExtendChunk
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import (
    MODEL,
    FailAt,
    ManualStream,
    admitted,
    begun,
    decode,
    draw,
    drawn,
    finish,
    finish_all,
    greedy,
    make_executor,
    make_pair,
    prompt_chunk,
)
from tests.scheduler.grouped import Answered, steps_of

# ---- tokens ----


def test_tokens_relayed_on_the_device_are_those_of_the_model() -> None:
    stream = ManualStream()
    executor, planner = make_pair(stream)
    prompt = tuple(range(10))
    req = admitted(planner, prompt, greedy(6))
    planner.launch(prompt_chunk(req, 0, 7))
    planner.launch(prompt_chunk(req, 7))
    planner.join([req])
    for _ in range(5):  # nothing has run yet: every input is a sentinel
        decode(planner)
    assert (req.num_computed, req.num_sampled, planner.num_launches) == (10, 6, 7)
    results = finish_all(planner, executor)
    assert [token for result in results for run in result.tokens for token in run] == MODEL.expected_tokens(prompt, 6)
    assert {owner for result in results for owner in result.rows} == {(req.held.row, req.held.owner_number)}
    assert not planner.in_flight and not executor.launches and planner.poll() == []
    executor.close()
    assert stream.closed


def test_a_launch_without_rows_to_sample_has_no_tokens() -> None:
    executor, planner = make_pair(ManualStream())
    req = admitted(planner)
    launched = planner.launch(prompt_chunk(req, 0, 2))
    assert finish(planner, executor) == (launched, StepResult(launched.ticket, (), ()))
    assert req.num_sampled == 0


def test_a_leaked_sentinel_fails_the_launch() -> None:
    executor, planner = make_pair(ManualStream())
    req = admitted(planner)
    req.num_sampled = 1  # its prompt was never launched
    planner.join([req])
    decode(planner)
    assert "which no launch has stashed" in finish(planner, executor)[1].error


def test_debug_mode_compares_host_and_device_before_each_launch() -> None:
    for debug in (True, False):
        executor, planner = make_pair(ManualStream(), debug=debug)
        begun(planner)
        decode(planner)
        executor.running.seq_lens_B = executor.running.seq_lens_B + 1
        decode(planner)
        errors = [result.error for result in finish_all(planner, executor)]
        assert errors[:2] == ["", ""] and errors[2].startswith("AssertionError") == debug


def test_a_plan_that_counts_other_rows_than_the_executor_has_ends_the_worker() -> None:
    executor = make_executor(ManualStream())
    with pytest.raises(AssertionError, match="0 rows decode, the planner has 1"):
        executor.submit(Plan(1, num_decodes=1))
    executor, joins = make_executor(ManualStream()), (Join(draw(row=1), 3, 5),)
    with pytest.raises(AssertionError, match="1 rows decode, the planner has 0"):
        executor.submit(Plan(2, grants=(Grant(1, 1, 0, (1,)),), joins=joins))


def test_scores_that_are_not_finite_name_their_owners_and_the_others_have_their_tokens() -> None:
    class NanAtSecond(FakeRunner):
        def forward(self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None) -> Tensor:
            logits_LV: Tensor = super().forward(inp, kv, on_layer)
            logits_LV[1:2] = torch.nan
            return logits_LV

    executor, planner = make_pair(ManualStream(), runner=NanAtSecond(vocab_size=97, context_length=64))
    reqs = [admitted(planner, (index, 2, 3), name=f"r{index}") for index in range(3)]
    planner.launch([chunk for req in reqs for chunk in prompt_chunk(req)])
    planner.join(reqs)
    decode(planner)  # reads what the first has stashed: no token that the model does not have
    result, after = finish_all(planner, executor)
    owners = tuple((req.held.row, req.held.owner_number) for req in reqs)
    assert (result.rows, result.not_finite, result.error, after.error) == (owners, owners[1:2], "", "")
    assert [len(run) for run in result.tokens] == [1, 0, 1]
    for index in (0, 2):
        assert [*result.tokens[index], *after.tokens[index]] == MODEL.expected_tokens(reqs[index].prompt_ids, 2)


# ---- launches that fail ----


def test_a_failed_launch_gives_its_error_and_no_tokens_and_the_executor_goes_on() -> None:
    runner = FakeRunner(vocab_size=97, context_length=64, before_forward=FailAt(1))
    executor, planner = make_pair(ManualStream(), runner=runner)
    bad, good = admitted(planner, (1, 2), name="bad"), admitted(planner, (3, 4), name="good")
    first = planner.launch(prompt_chunk(bad))
    planner.launch(prompt_chunk(good))
    launched, failed = finish(planner, executor)
    assert launched is first and launched.reqs == [bad, bad]
    assert failed == StepResult(first.ticket, (), (), error="RuntimeError: forward 1 is broken")
    _, fine = finish(planner, executor)
    assert fine.error == ""
    assert drawn(planner, fine) == {good: tuple(MODEL.expected_tokens((3, 4), 1))}


def launch_with_a_neighbour(planner: Planner, num_decodes: int) -> Req:
    """Launches a prompt, decodes of it, and at last one with another request. Returns that one."""
    begun(planner, (1, 2), name="old")
    new = admitted(planner, (3, 4, 5), name="new")
    for _ in range(num_decodes):
        decode(planner)
    planner.launch([ExtendChunk(new, 0, 3)], planner.decodes())
    new.num_sampled = 1
    new.append(tuple(MODEL.expected_tokens((3, 4, 5), 1)))
    planner.join([new])
    decode(planner)
    return new


@pytest.mark.parametrize("debug", [True, False])
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_failed_launch_does_not_fail_those_who_join_the_next(debug: bool, failing: int) -> None:
    """The next launch is enqueued already, with the failed requests still in it, and with new ones."""
    runner = FakeRunner(vocab_size=97, context_length=64, before_forward=FailAt(failing))
    executor, planner = make_pair(ManualStream(), runner=runner, debug=debug)
    new = launch_with_a_neighbour(planner, num_decodes=2 if failing > 2 else 1)
    results = finish_all(planner, executor)
    assert [bool(result.error) for result in results] == [n == failing for n in range(1, len(results) + 1)]
    assert drawn(planner, results[-1])[new] == (MODEL.expected_tokens((3, 4, 5), 2)[1],)


@pytest.mark.parametrize("debug", [True, False])
@pytest.mark.parametrize("unbuilt", [1, 2])
def test_a_launch_that_cannot_be_built_fails_alone(monkeypatch: pytest.MonkeyPatch, debug: bool, unbuilt: int) -> None:
    """Its rows go on in the launches after it, until a plan lets them leave; so their neighbours have their tokens."""
    build, count = ForwardBatch.init_new, 0

    def broken(*args: object) -> ForwardBatch:
        nonlocal count
        count += 1
        if count == unbuilt:
            raise RuntimeError("no inputs")
        return build(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(ForwardBatch, "init_new", broken)
    executor, planner = make_pair(ManualStream(), debug=debug)
    new = launch_with_a_neighbour(planner, num_decodes=1)
    results = finish_all(planner, executor)
    assert [result.error for result in results] == [
        "RuntimeError: no inputs" if n == unbuilt else "" for n in range(1, 5)
    ]
    assert (results[unbuilt - 1].rows, results[unbuilt - 1].tokens) == ((), ())
    assert drawn(planner, results[-1])[new] == (MODEL.expected_tokens((3, 4, 5), 2)[1],)

    (old,) = {req for launched in [decode(planner)] for req in launched.reqs} - {new}
    planner.release(old)  # its launch has failed, and with it the request
    planner.launch((), (new,))
    executor.running.check_mirrors()
    assert [draw.row for draw in executor.running.draws] == [new.held.row]
    two = finish_all(planner, executor)
    assert [drawn(planner, result)[new] for result in two] == [(t,) for t in MODEL.expected_tokens((3, 4, 5), 4)[2:]]


# ---- a plan of zero rows ----


class Seen:
    """The inputs of every forward."""

    def __init__(self) -> None:
        self.inputs: list[ModelInput] = []
        self.runner = FakeRunner(vocab_size=97, context_length=64, before_forward=self.inputs.append)


@pytest.mark.parametrize("relay", [True, False])
def test_a_plan_without_rows_goes_through_every_stage(relay: bool) -> None:
    seen, stream = Seen(), ManualStream()
    executor, planner = make_pair(stream, runner=seen.runner)
    buffer, table = executor.future_map.output_tokens_buf.clone(), executor.page_table.req_to_page.clone()
    launched = planner.launch(relay=relay)

    launch = executor.launches[0]
    assert launch.batch is not None and launch.error is None and launch.owners == ()
    assert all(tensor.numel() == 0 for tensor in launch.tensors)
    assert {tensor.shape[0] for tensor in launch.batch.tensors} == {0}
    assert not seen.inputs and launch.copy_done is not None and not launch.copy_done.done()

    assert finish(planner, executor) == (launched, StepResult(launched.ticket, (), ()))
    (inp,) = seen.inputs
    assert (inp.input_ids_T.shape, inp.num_decodes, inp.extend_lens, inp.max_decode_seq_len) == ((0,), 0, (), 0)
    assert launch.tokens_L is not None and launch.tokens_L.shape == (0,)
    assert not launched.layers
    assert torch.equal(executor.future_map.output_tokens_buf, buffer)
    assert torch.equal(executor.page_table.req_to_page, table) and not executor.page_table.req_to_page_cpu.any()
    assert not stream.queue and planner.collect() is False


# ---- pages ----


def test_the_executor_knows_only_the_pages_that_it_was_sent() -> None:
    """It may be another process: what the planner does to its own lists afterwards changes nothing."""
    executor, planner = make_pair(ManualStream())
    req = begun(planner, (1, 2, 3), greedy(5))
    decode(planner)
    held = req.held
    pages, table, draws = list(held.pages), executor.page_table.req_to_page.clone(), list(executor.running.draws)
    held.pages[:] = [9, 9]  # nobody does this; whoever read the planner's lists would see it
    req.prompt_ids, req.sampling, req.choice = (0,), greedy(1), 7
    held.row, held.owner_number = 5, 9
    executor.submit(Plan(99, num_decodes=1))
    assert torch.equal(executor.page_table.req_to_page, table) and table[1, :2].tolist() == pages
    assert executor.running.draws == draws
    batch = executor.launches[-1].batch
    assert batch is not None and batch.input.page_table_BP.tolist() == [pages]


@pytest.mark.parametrize("max_graphed", [0, 4])
def test_a_step_is_a_graphs_if_all_ranks_replay_one_until_it_is_over(max_graphed: int) -> None:
    agreement = Answered(size=1)
    executor, planner = make_pair(ManualStream(), runner=replace(MODEL, max_graphed=max_graphed), agreement=agreement)
    req = admitted(planner)
    planner.launch(prompt_chunk(req))
    assert executor.launches[0].step.graphs == (max_graphed == 4), "it has three tokens"
    assert (executor.running_step, executor.replayed_step) == (1, 0), "a prompt is computed without graphs"
    finish(planner, executor)
    planner.join([req])
    decode(planner)
    assert (executor.running_step, executor.replayed_step) == (2, 2 if max_graphed else 0)

    behind, executor.launches[0].copy_done = executor.launches[0].copy_done, None
    assert executor.replayed_step == 0, "its masks are not there, so the device may have ended its graph"
    executor.launches[0].copy_done = behind
    finish(planner, executor)
    assert (executor.running_step, executor.replayed_step) == (0, 0)
    executor.close()


def test_a_step_runs_from_when_the_executor_has_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks wait for it, although its lengths or masks are not there yet."""
    executor = make_executor(ManualStream())
    monkeypatch.setattr(executor.launcher, "is_ready", lambda plan, running, masking: False)
    steps_of(executor).submit(Plan(1))
    assert (executor.running_step, executor.replayed_step) == (1, 0) and not executor.launches
    monkeypatch.undo()
    assert executor.poll() == [] and executor.running_step == 1 and len(executor.launches) == 1
    executor.close()
    assert [type(outcome) for outcome in executor.poll()] == [StepResult] and executor.running_step == 0


def test_plans_without_a_step_are_the_same_on_every_rank() -> None:
    """Those of the start, and of a worker without a group. No other rank asks how far they are."""
    for num_ranks in (1, 3):
        executor = make_executor(ManualStream(), runner=replace(MODEL, max_graphed=4), num_ranks=num_ranks)
        joins = tuple(Join(draw(row), 1, 5) for row in (1, 2))
        executor.submit(Plan(1, grants=tuple(Grant(row, 1, 0, (row,)) for row in (1, 2)), joins=joins, num_decodes=2))
        assert executor.launches[0].step == StepShape(0, (2,) * num_ranks, graphs=True)
        assert executor.running_step == 0
        executor.close()
