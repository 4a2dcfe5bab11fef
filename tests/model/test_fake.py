"""The fake model tells right KV from wrong KV: that is its whole use."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.inputs import ModelInput
from scheduler.execution.batches import joined
from tests.doubles.hash_model import FakeRunner
from tests.model.driving import Lanes, random_prompt
from tests.model.trees import PARENTS, all_trees, paths, tree_input


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [7, None])
def test_pages_and_chunks_give_the_expected_tokens(page_size: int, chunk: int | None) -> None:
    fake = FakeRunner()
    lanes = Lanes(fake, page_size, poison=True)
    for length in (1, 16, 33):
        prompt = random_prompt(length, fake.vocab_size, length)
        assert lanes.generate(prompt, 20, chunk) == fake.expected_tokens(prompt, 20)


@given(prompt=st.lists(st.integers(0, 996), min_size=1, max_size=20), change=st.integers(0, 10**6))
def test_every_number_of_every_page_matters(prompt: list[int], change: int) -> None:
    fake = FakeRunner(vocab_size=1 << 20)
    lanes = Lanes(fake, 4, num_pages=32)
    lane = lanes.lane(prompt, 3)
    lanes.step([(lane, len(prompt))])
    position, layer, side = change % len(prompt), change % 2, change % 3 % 2
    slot = lanes.kv.layer(layer)[lane.pages[position // 4], side, position % 4]
    slot[0, change % 4] += 1
    lanes.step([], [lane])
    assert lane.tokens[len(prompt) + 1 :] != fake.expected_tokens(prompt, 2)[1:]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.5, 0.0])
def test_damage_that_is_not_a_number_shows(value: float) -> None:
    fake = FakeRunner()
    lanes = Lanes(fake, 4)
    lane = lanes.lane([5, 6, 7], 2)
    lanes.step([(lane, 3)])
    lanes.kv.layer(1)[lane.pages[0], 1, 2, 0, 3] = value
    lanes.step([], [lane])
    assert lane.tokens[3:] != fake.expected_tokens([5, 6, 7], 2)


def test_reordered_and_stale_pages_show() -> None:
    fake = FakeRunner()
    lanes = Lanes(fake, 4)
    prompt = random_prompt(16, fake.vocab_size, 0)
    expected = fake.expected_tokens(prompt, 2)[1]
    outcomes = []
    for swap in (False, True):
        lane = lanes.lane(prompt, 4)
        lanes.step([(lane, 16)])
        if swap:
            lane.pages[0], lane.pages[1] = lane.pages[1], lane.pages[0]
        lanes.step([], [lane])
        outcomes.append(lane.tokens[17] == expected)
    assert outcomes == [True, False]


@pytest.mark.parametrize("page_size", [1, 4])
def test_nodes_of_a_tree_give_what_follows_their_paths(page_size: int) -> None:
    """Two requests, each with a tree of seven nodes in one forward; seq_lens are the same bound for all of a tree."""
    fake = FakeRunner()
    lanes = Lanes(fake, page_size, poison=True)
    inputs, expected = [], []
    for length in (3, 9):
        lane = lanes.lane(random_prompt(length, fake.vocab_size, length), len(PARENTS))
        lanes.step([(lane, length)])
        nodes = [lane.tokens[-1], *random_prompt(len(PARENTS) - 1, fake.vocab_size, 100 + length)]
        for path in paths():
            expected += fake.expected_tokens([*lane.tokens[:-1], *(nodes[each] for each in path)], 1)
        inputs.append(tree_input(lane, nodes, page_size, 20))
    both = all_trees(inputs)
    assert fake.forward(both, lanes.kv).argmax(-1).tolist() == expected

    # Beside a chunk of a prompt, the same.
    new = lanes.lane([5, 6, 7], 1)
    mixed = joined(lanes.model_input([(new, 3)], []), both)
    assert fake.forward(mixed, lanes.kv).argmax(-1).tolist() == [*fake.expected_tokens([5, 6, 7], 1), *expected]


def test_layers_are_reported_as_they_are_written_and_the_hook_runs_first() -> None:
    seen: list[object] = []

    def before(inp: ModelInput) -> None:
        seen.append(("start", inp.input_ids_T.shape[0]))

    fake = FakeRunner(num_layers=3, before_forward=before)
    lanes = Lanes(fake, 4)
    lane = lanes.lane([1, 2, 3], 1)
    inp = lanes.model_input([(lane, 3)], [])

    def on_layer(layer: int) -> None:
        pages = lanes.kv.layer(layer)[lane.pages[0], :, :3]
        seen.append((layer, bool((pages != 0).any(dim=-1).all())))

    logits = fake.forward(inp, lanes.kv, on_layer)
    assert seen == [("start", 3), (0, True), (1, True), (2, True)]
    assert logits.shape == (1, 997) and int(logits.argmax()) == fake.expected_tokens([1, 2, 3], 1)[0]


def test_wanted_rows_may_repeat_or_be_absent() -> None:
    fake = FakeRunner()
    lanes = Lanes(fake, 4)
    lane = lanes.lane([1, 2, 3, 4, 5], 1)
    inp = lanes.model_input([(lane, 5)], [])
    for rows in ([], [4, 4, 4], [1, 4]):
        wanted = ModelInput(**{**vars(inp), "logit_indices_L": torch.tensor(rows, dtype=torch.int64)})
        tokens = fake.forward(wanted, lanes.kv).argmax(-1).tolist() if rows else []
        assert fake.forward(wanted, lanes.kv).shape == (len(rows), 997)
        assert tokens == [fake.expected_tokens([1, 2, 3, 4, 5][: row + 1], 1)[0] for row in rows]
