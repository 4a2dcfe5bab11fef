"""Trees through whole models: each node gives what its path gives as a chain, and a path that is kept becomes one."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from model.draft import first_layer
from model.runner import ModelRunner
from testkit.checkpoints import make_checkpoint
from tests.doubles.hash_model import FakeRunner
from tests.model.driving import Lanes, random_prompt
from tests.model.speculating import Chain
from tests.model.trees import PARENTS, paths, tree_input

VOCABULARY = 307


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("cpu_kernels", [False, True])
def test_a_tree_gives_the_logits_of_its_paths_and_a_kept_path_decodes_on(
    tmp_path: Path, cpu_kernels: bool, page_size: int
) -> None:
    runner = ModelRunner.load(
        make_checkpoint(tmp_path / "m", "qwen3"), device="cpu", dtype="float32", cpu_kernels=cpu_kernels
    )
    prompt = random_prompt(9, VOCABULARY, 1)
    ids = random_prompt(len(PARENTS), VOCABULARY, 2)

    def logits_of(tokens: list[int]) -> torch.Tensor:
        lanes = Lanes(runner, page_size)
        lane = lanes.lane(tokens, 0)
        lanes.step([(lane, len(tokens))])
        return lane.logits[0]

    lanes = Lanes(runner, page_size, poison=True)
    lane = lanes.lane(prompt, 20)
    lanes.step([(lane, len(prompt))])
    logits_TV = runner.forward(tree_input(lane, ids, page_size, 40), lanes.kv)
    for node, path in enumerate(paths()):
        torch.testing.assert_close(logits_TV[node], logits_of(prompt + [ids[at] for at in path]), rtol=0, atol=1e-4)

    # Nodes 0, 2, 5 and 6 are kept: their slots become the ones behind the prompt. The others hold garbage from then on.
    [kept] = [path for path in paths() if path[-1] == 6]
    slots = [lane.pages[at // page_size] * page_size + at % page_size for at in range(9, 9 + len(PARENTS))]
    lanes.kv.move_tokens(0, torch.tensor([slots[node] for node in kept]), torch.tensor(slots[: len(kept)]))
    garbage = lanes.kv.token_rows(torch.tensor(slots[len(kept) :]))
    for layer in range(lanes.kv.layout.num_layers):
        width = lanes.kv.layer(layer).shape[-2] * lanes.kv.layer(layer).shape[-1]
        nan = torch.full((len(garbage[0]), width), float("nan"))
        lanes.kv.write(layer, garbage, nan, nan)
    lane.tokens = [*prompt, *(ids[node] for node in kept), 5]
    lane.done = len(lane.tokens) - 1
    lanes.step([], [lane])
    torch.testing.assert_close(lane.logits[-1], logits_of(lane.tokens[:-1]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("masked", [True, False])
def test_nodes_of_the_fake_draft_propose_by_their_own_paths(masked: bool) -> None:
    """Two levels of two nodes, level by level. Without the mask only the first node sees right slots alone."""
    fake, right = FakeRunner(draft_seed=1), []
    for seed in range(12):
        one = Chain(fake, random_prompt(9, 997, seed), 20)
        tokens, done = list(one.tokens), one.lane.done
        level, parents = [one.proposal % 997, 7], [-1, -1, 1, 0]  # node 2 is a child of node 1, node 3 of node 0
        ids = [*level, *random_prompt(2, 997, 50 + seed)]
        hidden_TE = one.hidden_1E.expand(2, -1)
        for nodes in ([0, 1], [2, 3]):
            whole = tree_input(one.lane, ids, one.page_size, len(one.lane.pages), parents)
            inp = replace(whole.mapped(partial(torch.index_select, dim=0, index=torch.tensor(nodes))), num_decodes=2)
            inp = replace(inp, logit_indices_L=torch.arange(2), seq_lens_B=torch.tensor(nodes) + done + 1)
            inp = inp if masked else replace(inp, tree_starts_D=None, tree_bits_D=None)
            logits_TV, hidden_TE = first_layer(one.draft, inp, hidden_TE, one.kv)
            for node, proposed in zip(nodes, logits_TV.argmax(-1).tolist(), strict=True):
                known = [*tokens, *(ids[at] for at in paths(parents)[node])]
                expected = fake.expected_tokens(known, 1)[0]
                right.append((node, proposed == expected, fake.expected_luck(known)[-1]))
            hidden_TE = hidden_TE.flip(0)  # of the parents of the next level
    for node, was_right, luck in right:
        assert was_right == (luck and (masked or node == 0)), node
    assert {luck for _, _, luck in right} == {True, False}
