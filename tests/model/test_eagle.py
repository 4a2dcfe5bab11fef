"""Features, hidden states and logits of drafts equal an independent float32 reference: tokens would never show it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.draft import first_layer
from model.runner import DraftSource, ModelRunner
from protocol.fingerprint import difference
from protocol.kv_layout import LayerGroup
from testkit.checkpoints import Architecture, greedy_reference, make_checkpoint
from tests.drafts import DraftReference, make_draft
from tests.model.driving import Lanes, random_prompt
from tests.model.speculating import Chain, assert_near, true_features

NUM_TOKENS = 41
FEATURES: dict[str, tuple[int, ...]] = {"eagle": (), "eagle3": (0, 1, 2)}


def loaded(folder: Path, algorithm: str, kind: Architecture, **fields: Any) -> tuple[ModelRunner, DraftReference]:
    """A target with its draft, both of one kind, and the draft's reference. `fields` are make_draft's."""
    target, own = make_checkpoint(folder / "target", kind), folder / "draft"
    cpu_kernels = bool(fields.pop("cpu_kernels", True))
    make_draft(own, target, algorithm, kind, **fields)
    source = DraftSource(algorithm, own)
    runner = ModelRunner.load(target, device="cpu", dtype="float32", draft=source, cpu_kernels=cpu_kernels)
    return runner, DraftReference(own, target)


CASES = [
    ("eagle", "llama", {}),
    ("eagle", "qwen3", {"has_all": False}),
    ("eagle3", "llama", {}),
    ("eagle3", "qwen3", {"has_all": False, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}),
    ("eagle3", "qwen3", {"cpu_kernels": False}),
]


@pytest.mark.parametrize(("algorithm", "kind", "fields"), CASES)
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [NUM_TOKENS, 7, 1])
def test_features_hidden_states_and_logits(
    tmp_path: Path, algorithm: str, kind: Architecture, fields: dict[str, Any], page_size: int, chunk: int
) -> None:
    runner, reference = loaded(tmp_path, algorithm, kind, **fields)
    assert runner.draft is not None
    tokens = random_prompt(NUM_TOKENS, 307, 5)
    expected_SF = true_features(tmp_path / "target", tokens, FEATURES[algorithm])
    after_S = torch.tensor([*tokens[1:], 17])
    logits_SV, hidden_SE = reference.run(after_S, reference.fuse(expected_SF))

    lanes = Lanes(runner, page_size, poison=True)
    lane, found = lanes.lane(tokens, 8), []
    while lane.done < NUM_TOKENS:
        count = min(chunk, NUM_TOKENS - lane.done)
        inp = lanes.model_input(*(([(lane, count)], []) if count > 1 else ([], [lane])))
        _, features_TF = runner.forward_with_features(inp, lanes.kv)
        every = replace(
            inp,
            input_ids_T=after_S[lane.done : lane.done + count],
            logit_indices_L=torch.arange(count),
        )
        found.append((features_TF, *first_layer(runner.draft, every, runner.draft.fuse(features_TF), lanes.kv)))
        lane.done += count
    for column, expected in enumerate((expected_SF, logits_SV, hidden_SE)):
        assert_near(torch.cat([each[column] for each in found]), expected)


@pytest.mark.parametrize(("algorithm", "kind"), [("eagle", "llama"), ("eagle3", "qwen3")])
def test_a_chain_of_proposals_and_the_forward_behind_a_verify(
    tmp_path: Path, algorithm: str, kind: Architecture
) -> None:
    """A draft's own hidden states feed its next steps; the target's features replace them."""
    runner, reference = loaded(tmp_path, algorithm, kind)
    prompt = random_prompt(19, 307, 6)
    one = Chain(runner, prompt, 20, page_size=4)
    features_SF = true_features(tmp_path / "target", prompt, FEATURES[algorithm])
    hidden_SE = reference.fuse(features_SF)
    tokens = [*prompt, one.tokens[-1]]
    for index in range(3):
        logits_SV, out_SE = reference.run(torch.tensor(tokens[1:]), hidden_SE)
        assert one.proposal == int(logits_SV[-1].argmax())
        assert_near(one.hidden_1E, out_SE[-1:])
        tokens.append(one.proposal)
        hidden_SE = torch.cat((hidden_SE, out_SE[-1:]))
        inp = one.rows([one.proposal], len(prompt) + index)
        logits_1V, one.hidden_1E = first_layer(one.draft, inp, one.hidden_1E, one.kv)
        one.proposal = int(logits_1V.argmax())

    ids = [one.tokens[-1], 5, 6, 7]
    verify = one.rows(ids, len(prompt))
    _, features_TF = runner.forward_with_features(verify, one.kv)
    all_SF = true_features(tmp_path / "target", prompt + ids, FEATURES[algorithm])
    assert_near(features_TF, all_SF[-4:])
    after = torch.tensor([5, 6, 7, 8])
    found = first_layer(one.draft, replace(verify, input_ids_T=after), one.draft.fuse(features_TF), one.kv)
    expected = reference.run(torch.tensor([*prompt[1:], *ids, 8]), reference.fuse(all_SF))
    for one_found, one_expected in zip(found, expected, strict=True):
        assert_near(one_found, one_expected[-4:])

    layer = one.kv.layer(runner.config.num_layers)
    written = layer.clone()
    layer.fill_(torch.nan)
    one.draft.run_layer(0, replace(verify, input_ids_T=after), one.draft.fuse(features_TF), one.kv, attends=False)
    is_own = ~layer.isnan()
    assert is_own.sum() == 4 * layer[0, :, 0].numel() and torch.equal(layer[is_own], written[is_own])


@pytest.mark.parametrize("algorithm", ["eagle", "eagle3"])
def test_speculation_changes_no_token(tmp_path: Path, algorithm: str) -> None:
    runner, _ = loaded(tmp_path, algorithm, "llama")
    prompt = random_prompt(11, 307, 2)
    one = Chain(runner, prompt, 30)
    while len(one.tokens) < 40:
        one.step(3)
    expected = greedy_reference(tmp_path / "target", [prompt], 28)
    assert one.tokens[11:39] == expected[0]


def test_kv_of_the_draft_lies_behind_the_targets(tmp_path: Path) -> None:
    runner, _ = loaded(tmp_path, "eagle3", "qwen3", num_attention_heads=6, num_key_value_heads=3, head_dim=8)
    plain = ModelRunner.load(tmp_path / "target", device="cpu", dtype="float32")
    assert runner.kv_layout(16).groups == (*plain.kv_layout(16).groups, LayerGroup(1, 3, 8, lookahead=1))
    assert runner.draft is not None and plain.draft is None
    assert (runner.draft.hidden_size, runner.draft.num_layers) == (48, 1)
    seen = list[int]()
    lanes = Lanes(runner, 4)
    inp = lanes.model_input([(lanes.lane([1, 2, 3], 1), 3)], [])
    first_layer(runner.draft, inp, torch.zeros(3, 48), lanes.kv, seen.append)
    assert seen == [3]
    tensors = DraftReference(tmp_path / "draft", tmp_path / "target").w.items()
    own = sum(tensor.numel() * (8 if name == "d2t" else 4) for name, tensor in tensors if name != "t2d")
    more = runner.mapped_weight_bytes + runner.private_weight_bytes
    assert more - plain.mapped_weight_bytes - plain.private_weight_bytes == own


def test_a_fingerprint_names_the_draft(tmp_path: Path) -> None:
    first, _ = loaded(tmp_path, "eagle3", "llama")
    ours = first.fingerprint()
    assert difference(ours, loaded(tmp_path, "eagle3", "llama")[0].fingerprint(), "p", "d") is None
    plain = ModelRunner.load(tmp_path / "target", device="cpu").fingerprint()
    assert difference(ours, plain, "p", "d") == "--speculative-algorithm is eagle3 on p, none on d"
    seeded, _ = loaded(tmp_path, "eagle3", "llama", seed=1)
    assert "draft: weights: the digest of tensor 'd2t' is" in str(difference(ours, seeded.fingerprint(), "p", "d"))
    thinner, _ = loaded(tmp_path, "eagle3", "llama", intermediate_size=64)
    assert difference(ours, thinner.fingerprint(), "p", "d") == "draft: layer.feed.width is 72 on p, 64 on d"


@pytest.mark.parametrize("nested", [False, True])
def test_layers_by_their_inputs_or_by_their_outputs(tmp_path: Path, nested: bool) -> None:
    """The first way is vLLM's, the second one SGLang's."""
    name = "eagle_aux_hidden_state_layer_ids"
    fields = {name: None, "eagle_config": {name: [-1, 0, 1]}} if nested else {name: [0, 1, 2]}
    runner, _ = loaded(tmp_path, "eagle3", "llama", **fields)
    assert runner.draft is not None and runner.draft.feature_layers == (0, 1, 2)


@pytest.mark.parametrize("fields", [{}, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}])
def test_layers_by_default(tmp_path: Path, fields: dict[str, Any]) -> None:
    """ModelOpt writes an empty list for its own default, which is the same."""
    target = make_checkpoint(tmp_path / "target", "llama", num_hidden_layers=8)
    make_draft(tmp_path / "draft", target, "eagle3", eagle_aux_hidden_state_layer_ids=None, **fields)
    runner = ModelRunner.load(target, device="cpu", draft=DraftSource("eagle3", tmp_path / "draft"))
    assert runner.draft is not None and runner.draft.feature_layers == (2, 4, 5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types(tmp_path: Path, dtype: str) -> None:
    """Greedy tokens are the target's own, and hidden states have its dtype."""
    runner, _ = loaded(tmp_path, "eagle3", "qwen3")
    target = tmp_path / "target"
    narrow = ModelRunner.load(target, device="cpu", dtype=dtype, draft=DraftSource("eagle3", tmp_path / "draft"))
    assert narrow.kv_layout(4).dtype == dtype
    one, wide = (Chain(each, random_prompt(11, 307, 2), 30) for each in (narrow, runner))
    assert one.hidden_1E.isfinite().all()
    distance = (one.hidden_1E.float() - wide.hidden_1E).norm() / wide.hidden_1E.norm()
    assert float(distance) < 0.1
    for _ in range(4):
        one.step(3)
    assert one.tokens[11:] == Lanes(narrow, 4).generate(random_prompt(11, 307, 2), len(one.tokens) - 11)
