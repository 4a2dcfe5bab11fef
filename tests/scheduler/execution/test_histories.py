"""The tokens of contexts on the device: seeded, written by launches, and read with the paths to nodes."""

import numpy as np
import torch

from model.inputs import TREE_SLOTS
from model.logit_rules import RuleColumns
from model.sampling_input import AskingRows, ParamColumns, SamplingInput
from protocol.logit_rules import LogitRules
from protocol.messages_gateway import SamplingParams
from scheduler.execution.histories import Histories, seeds_of, width_for, with_paths
from scheduler.execution.sampling_columns import SamplingColumns, rule_columns
from scheduler.plan import Chunk, Draw, Join, Plan
from tests.scheduler.building import CPU

REPEATS = SamplingParams(9, rules=LogitRules(repetition_penalty=1.5))
BIASED = SamplingParams(9, rules=LogitRules(logit_bias=((3, 1.0),)))
PLAIN = SamplingParams(9)


def drawing(row: int, *context: int, params: SamplingParams = REPEATS, num_prompt: int = 2) -> Draw:
    return Draw(row, 0, 0, params, num_prompt, context=context)


def columns_of(*draws: Draw, longest: int = 8) -> RuleColumns:
    made = rule_columns(draws, CPU)
    assert made is not None
    return made._replace(width=width_for(longest, 0))


def test_rows_are_seeded_where_they_join_or_draw_their_first_token() -> None:
    plan = Plan(
        1,
        joins=(Join(drawing(2, 7, 8, 9), 2, 9), Join(drawing(4, params=PLAIN), 5, None)),
        chunks=(Chunk(1, 0, (5, 6), (drawing(1, 5, 6),)),),
    )
    seeds = seeds_of(plan, CPU)
    assert seeds is not None
    assert seeds.tolist() == [[2, 2, 2, 1, 1], [0, 1, 2, 0, 1], [7, 8, 9, 5, 6]]
    assert seeds_of(Plan(1), CPU) is None


def test_contexts_grow_with_what_is_drawn_and_what_is_taken_back_is_written_again() -> None:
    histories, columns = Histories(5, CPU), columns_of(drawing(3), drawing(1))
    seeds = seeds_of(Plan(1, joins=(Join(drawing(3, 7, 8), 1, 8), Join(drawing(1, 4), 0, 4))), CPU)
    first = histories.begin(columns, seeds)
    assert first is not None and (first[0, :2].tolist(), first[1, :1].tolist()) == ([7, 8], [4])

    histories.write(torch.tensor([3, 3, 1]), torch.tensor([2, 3, 1]), torch.tensor([9, 10, -1]))
    histories.write(torch.tensor([3]), torch.tensor([3]), torch.tensor([11]))
    second = histories.begin(columns, None)
    assert second is not None and second[0, :4].tolist() == [7, 8, 9, 11]
    assert second[1, :2].tolist() == [4, 0], "no token was written over it"


def test_a_longer_context_keeps_what_is_there() -> None:
    histories = Histories(3, CPU)
    histories.begin(columns_of(drawing(1)), seeds_of(Plan(1, joins=(Join(drawing(1, 5, 6), 1, 6),)), CPU))
    histories.write(torch.tensor([2]), torch.tensor([10_000]), torch.tensor([3]))  # no rule reads this row
    wide = histories.begin(columns_of(drawing(1), longest=1000), None)
    assert wide is not None and wide.shape == (1, 1024)
    assert wide[0, :3].tolist() == [5, 6, 0]


def test_rules_that_read_no_context_keep_none() -> None:
    draws = [drawing(1, params=BIASED), drawing(2, params=PLAIN)]
    assert Histories(3, CPU).begin(columns_of(*draws), None) is None
    assert Histories(3, CPU).begin(None, None) is None


def with_positions(columns: RuleColumns, *positions: int) -> SamplingInput:
    params = SamplingColumns.of([], CPU).params
    return SamplingInput(
        ParamColumns(*params), AskingRows(None, None, None, True), torch.tensor(positions), None, columns
    )


def test_a_chain_puts_its_proposals_behind_the_context() -> None:
    """One first token, then two rows of three tokens each; only the second has rules."""
    rows = [drawing(1)], [drawing(2, params=PLAIN)] * 3, [drawing(3)] * 3
    columns = columns_of(*rows[0], *rows[1], *rows[2])
    history_NT = torch.zeros((4, 8), dtype=torch.int64)
    sampling = with_positions(columns, 4, 2, 3, 4, 3, 4, 5)
    with_path_NT = with_paths(history_NT, sampling, 1, torch.tensor([[51, 52, 53], [61, 62, 63]]), None)
    assert with_path_NT[0].tolist() == [0] * 8, "the first token of a prompt has no path"
    assert with_path_NT[1, 2:5].tolist() == [61, 0, 0]
    assert with_path_NT[2, 2:5].tolist() == [61, 62, 0]
    assert with_path_NT[3, 2:5].tolist() == [61, 62, 63]


def test_a_tree_puts_each_nodes_own_path_behind_the_context() -> None:
    """Nodes 1 and 2 are both behind the root, node 3 is behind node 2."""
    columns = columns_of(*[drawing(3)] * 4)
    bits = torch.tensor([0b1, 0b11, 0b101, 0b1101])
    sampling = with_positions(columns, 3, 4, 4, 5)
    with_path_NT = with_paths(
        torch.zeros((4, 8), dtype=torch.int64), sampling, 0, torch.tensor([[60, 61, 62, 63]]), bits
    )
    assert [row[2:5] for row in with_path_NT.tolist()] == [[60, 0, 0], [60, 61, 0], [60, 62, 0], [60, 62, 63]]


def test_widths_have_room_for_a_tree() -> None:
    draws = SamplingColumns.of([drawing(1)], CPU)
    rules = draws.input(torch.tensor([200]), np.array([200])).rules
    assert rules is not None and rules.width >= 200 + TREE_SLOTS
