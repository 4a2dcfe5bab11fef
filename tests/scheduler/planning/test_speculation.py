"""How many tokens a draft proposes, as a pure decision; and what is counted of them."""

from collections.abc import Sequence

import pytest
import torch

from model.inputs import ModelInput
from protocol.errors import InternalError
from scheduler.draft_shape import DraftShape
from scheduler.plan import Plan, StepResult
from scheduler.planning.launch_costs import StepCosts
from scheduler.planning.speculation import FIRST_GUESS, PROBE, Speculation, rates_of
from scheduler.planning.trials import FIRST_WAIT, TRIAL
from scheduler.speculation.step_costs import LONG_S, measure_step_costs
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner
from tests.explore.proposals import Proposals
from tests.scheduler.building import (
    FailAt,
    ManualStream,
    admitted,
    decode,
    drawn,
    finish,
    greedy,
    make_executor,
    make_planner,
    prompt_chunk,
)

CHEAP = StepCosts((1, 64), ((1.0, 1.01, 1.02, 1.03), (1.0, 1.01, 1.02, 1.03)))  # its time goes to reading weights
DEAR = StepCosts((1, 2), ((1.0, 2.2, 3.4, 4.6), (2.0, 4.4, 6.8, 9.2)))  # its time goes to computing
USUAL = StepCosts((1, 16), ((1.0, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7), (1.6, 2.6, 3.4, 4.2, 5.0, 5.8, 6.6)))


def best_steps(acceptance: Sequence[float], launch_s: Sequence[float]) -> int:
    rates = rates_of(acceptance, launch_s)
    return rates.index(max(rates))


def test_where_tokens_cost_nothing_all_are_proposed_unless_they_are_wrong() -> None:
    assert best_steps([0.9, 0.8, 0.7], CHEAP.launch_s(4)) == 3
    assert best_steps([0.9, 0.8, 0.0], CHEAP.launch_s(4)) == 2
    assert best_steps([0.0, 0.0, 0.0], CHEAP.launch_s(4)) == 0


def test_where_every_token_costs_as_much_nothing_is_proposed() -> None:
    assert best_steps([0.7, 0.5, 0.3], DEAR.launch_s(8)) == 0


def test_large_batches_get_fewer_proposals() -> None:
    acceptance = [0.8**index for index in range(1, 7)]
    steps = [best_steps(acceptance, USUAL.launch_s(num_rows)) for num_rows in (1, 4, 16, 64)]
    assert steps == sorted(steps, reverse=True) and steps[0] > steps[-1] == 0


def test_without_costs_it_is_always_as_many_for_rows_that_decode() -> None:
    assert [Speculation(DraftShape(3), 9).next_steps(num_rows, num_rows) for num_rows in (0, 1, 100)] == [0, 3, 3]


def test_a_launch_is_expected_to_verify_proposals_unless_the_draft_rests() -> None:
    speculation = Speculation(DraftShape(3), 9)
    assert speculation.most_tokens(5) == 20
    speculation.rests = True
    assert speculation.most_tokens(5) == 5


def test_where_no_row_has_a_draft_nothing_is_proposed() -> None:
    assert Speculation(DraftShape(3), 9).next_steps(4, 0) == 0
    assert Speculation(DraftShape(3), 9, CHEAP).next_steps(4, 0) == 0


def test_rows_without_a_draft_make_proposals_pay_less() -> None:
    speculation = Speculation(DraftShape(3), 9, StepCosts((1, 64), ((1.0, 1.2, 1.4, 1.6),) * 2))
    assert [speculation.next_steps(8, num_drafting) > 0 for num_drafting in (8, 6, 1)] == [True, True, False]


def test_it_learns_what_is_kept_and_tries_again_now_and_then() -> None:
    speculation = Speculation(DraftShape(2), 9, StepCosts((1,), ((1.0, 1.2, 1.3),)))
    assert speculation.next_steps(1, 1) == 2
    tried = []
    for _ in range(4 * FIRST_WAIT):
        tried.append(speculation.next_steps(1, 1))
        speculation.count(tried[-1], [(5,)])  # nothing is ever kept
    assert 0 in tried[:20], "what was hoped for weighs little"
    assert tried[20:].count(0) == 4 * FIRST_WAIT - 20 - 2 * TRIAL, "one more trial after twice the wait"

    for _ in range(40 * PROBE):
        steps = speculation.next_steps(1, 1)
        speculation.count(steps, [tuple(range(steps + 1))])  # everything is kept
    assert speculation.next_steps(1, 1) == 2


@pytest.mark.parametrize(
    ("launch_s", "best", "probes"),
    [
        ((1.0, 1.1, 1.2, 9.0), 2, [3, 1, 3]),
        ((1.0, 1.1, 9.0, 9.0), 1, [2, 1, 2]),
        ((1.0, 1.0, 1.0, 1.0), 3, [3, 2, 3]),
    ],
)
def test_one_proposal_more_is_tried_now_and_then_and_one_fewer(
    launch_s: tuple[float, ...], best: int, probes: list[int]
) -> None:
    speculation = Speculation(DraftShape(3), 9, StepCosts((1,), (launch_s,)))
    tried = [steps for _ in range(5 * PROBE) if (steps := speculation.next_steps(1, 1))]
    expected = [best] * (PROBE - 1)
    for probe in probes:
        expected += [probe] * TRIAL + [best] * (PROBE - TRIAL)
    assert tried[: len(expected)] == expected


def test_what_is_behind_a_wrong_proposal_tells_nothing() -> None:
    """A launch does not check a proposal behind a wrong one. Its acceptance behind kept ones stays as hoped."""
    speculation = Speculation(DraftShape(3), 9)
    for _ in range(100):
        speculation.count(3, [(1,), (1, 2)])
    first, second, third = speculation.acceptance
    assert first == pytest.approx(0.5, abs=0.01) and second < 0.01
    assert third == pytest.approx(FIRST_GUESS * second)


def test_proposals_are_counted_by_position() -> None:
    speculation = Speculation(DraftShape(3), 9)
    speculation.count(3, [(1, 2, 3, 4), (1,), (1, 2)])
    speculation.count(1, [(1, 2)])
    assert speculation.counters == {
        "spec_proposed_0": 4,
        "spec_accepted_0": 3,
        "spec_proposed_1": 3,
        "spec_accepted_1": 1,
        "spec_proposed_2": 3,
        "spec_accepted_2": 1,
    }


@pytest.mark.parametrize(("most", "sizes"), [(1, (1,)), (5, (1, 2, 4, 5)), (8, (1, 2, 4, 8))])
def test_launches_of_every_size_are_timed_and_leave_nothing_behind(most: int, sizes: tuple[int, ...]) -> None:
    stream = ManualStream()
    runner = FakeRunner(vocab_size=97, context_length=64, draft_seed=1)
    executor = make_executor(stream, runner=runner)
    before = executor.kv.layer(0)[1:].clone()
    costs = measure_step_costs(executor, most, 3, VirtualClock())
    assert costs == StepCosts(sizes, ((0.0,) * 4,) * len(sizes), (0.0,) * len(sizes))
    assert not len(executor.running) and not executor.launches and not executor.submitted
    assert torch.equal(executor.kv.layer(0)[1:].view(torch.int32), before.view(torch.int32))

    planner = make_planner(executor, speculation=Speculation(DraftShape(3), 9))
    proposals, req = Proposals(planner, runner), admitted(planner, (5, 6, 7), greedy(30))
    planner.launch(prompt_chunk(req), planner.decodes())
    planner.join([req])
    while req.finish is None:
        _, result = finish(planner, executor)
        req.append(drawn(planner, result)[req])
        decode(planner)
    assert req.outputs == runner.expected_tokens((5, 6, 7), 30) and proposals.num_kept > 0


def test_a_slow_machine_is_timed_with_two_sizes() -> None:
    """Costs lie on lines, and a line needs two points."""
    clock = VirtualClock()
    slow = FakeRunner(draft_seed=1, before_forward=lambda inp: clock.advance(2 * LONG_S * inp.num_decodes))
    executor = make_executor(ManualStream(), runner=slow)
    costs = measure_step_costs(executor, 8, 3, clock)
    assert costs.num_rows == (1, 2)
    assert costs.launch_s(4)[3] == pytest.approx(16 * 2 * LONG_S)


def test_a_group_times_a_list_of_launches_that_no_clock_ends() -> None:
    """All ranks launch the same list, however slow one of them is."""

    def steps(slow_s: float) -> list[tuple[int, ...]]:
        clock, seen = VirtualClock(), list[tuple[int, ...]]()

        def before(inp: ModelInput) -> None:
            assert inp.step is not None
            seen.append((inp.step.step, *inp.step.num_tokens))
            clock.advance(slow_s)

        slow = FakeRunner(draft_seed=1, before_forward=before)
        executor = make_executor(ManualStream(), runner=slow, num_ranks=2)
        assert measure_step_costs(executor, 5, 3, clock).num_rows == (1, 4, 5)
        return seen

    fast = steps(0.0)
    assert steps(2 * LONG_S) == fast and len(fast) == 2 * 3 + 3 * (1 + 3 * 2 * 4) + 3 * (1 + 3) + 1


def test_prompts_are_timed_with_the_draft_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is slow in the first round."""
    clock, slow, seen = VirtualClock(), iter((5.0, 5.0)), list[Plan]()
    executor = make_executor(ManualStream(), runner=FakeRunner(draft_seed=1))
    run_alone = executor.run_alone

    def timed(plan: Plan) -> StepResult:
        seen.append(plan)
        clock.advance(next(slow, 1.0) + 0.5 * plan.drafts if plan.chunks else 0.0)
        return run_alone(plan)

    monkeypatch.setattr(executor, "run_alone", timed)
    plain_s, drafting_s = measure_step_costs(executor, 1, 1, clock).prompt_token_s
    num_tokens = len(seen[0].chunks[0].ids)
    assert num_tokens > 1 and (plain_s, drafting_s) == pytest.approx((1.0 / num_tokens, 1.5 / num_tokens))


PROMPTS_COST = StepCosts((1, 64), ((1.0, 1.2, 1.4, 1.6),) * 2, (0.9, 0.9), (0.01, 0.02))


@pytest.mark.parametrize("num_outputs", [0, 1, 200])
def test_a_load_of_prompts_alone_rests_and_one_that_decodes_does_not(num_outputs: int) -> None:
    """Of 300 tokens each, for which the draft takes three seconds. A launch with proposals saves one and more."""
    speculation = Speculation(DraftShape(3), 9, PROMPTS_COST, VirtualClock())
    began = 0
    while began < 200 and not speculation.rests:
        speculation.next_steps(0, 0, 300)
        for _ in range(num_outputs):
            speculation.next_steps(1, 1)
        began += 1
    assert speculation.rests == (num_outputs < 3) and began >= (64 if num_outputs < 3 else 200)


def test_prompts_of_a_rest_speak_against_its_end() -> None:
    """Each 300 tokens of prompts are followed by two launches of decodes, or by a hundred."""
    for num_outputs, rests in ((2, True), (100, False)):
        speculation = Speculation(DraftShape(3), 9, PROMPTS_COST, VirtualClock())
        while not speculation.rests:
            speculation.next_steps(0, 0, 300)
        for _ in range(20_000):
            speculation.next_steps(0, 0, 300)
            for _ in range(num_outputs):
                speculation.next_steps(1, 0)
            if not speculation.rests:
                break
        assert speculation.rests == rests


def test_a_slow_round_does_not_count() -> None:
    """Other work on the machine slows down one number of proposals once."""
    clock, slow = VirtualClock(), iter((1.0,) * 6)  # the first launch, and a round
    runner = FakeRunner(draft_seed=1, before_forward=lambda inp: clock.advance(next(slow, 0.1) * inp.num_decodes))
    costs = measure_step_costs(make_executor(ManualStream(), runner=runner), 1, 3, clock)
    assert costs.seconds[0] == pytest.approx((0.1, 0.2, 0.3, 0.4))


def test_a_launch_that_fails_while_it_is_timed_ends_the_start() -> None:
    failing = FakeRunner(draft_seed=1, before_forward=FailAt(2))
    with pytest.raises(InternalError, match="a launch before the first request has failed"):
        measure_step_costs(make_executor(ManualStream(), runner=failing), 2, 3, VirtualClock())
