"""Real models in float32: with a draft the tokens are those without one, through whole deployments in one process.

Greedy tokens are those of transformers. Sampled ones are those of the same deployment without a draft. They may differ
only from a token on whose margin is smaller than rounding. The drafts are random, but one is fitted, so that proposals
are accepted, too.
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from model.runner import DraftSource, ModelRunner
from protocol.logprobs import LogprobsAsked
from protocol.messages_gateway import SamplingParams
from testkit.checkpoints import OF_EXPERTS, WITH_WINDOWS, Architecture
from testkit.reference import NUM_TOKENS, reference
from tests.cluster import Cluster
from tests.drafts import add_mtp, make_draft
from tests.parity.grid import PAIRWISE, Combination
from tests.parity.margins import check_logprobs, margins
from tests.parity.serving import model_of, runner_of
from tests.selecting import first, full

pytestmark = pytest.mark.slow

GREEDY = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
SAMPLED = replace(GREEDY, temperature=0.7)
KINDS = ("eagle", "eagle3", "mtp", "two layers")
NUM_LAYERS = 2
MTP_NORMS = ("hidden", "token", "final")
CHAIN, TREE = (1, 0), (3, 8)  # top-k and nodes
NUM_KV_TOKENS = 2400


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def runner_with(kind: str, arch: Architecture, scratch: Path) -> ModelRunner:
    """The reference's model with a draft of this kind."""
    target, folder = reference(arch).folder, scratch / f"{kind}-{arch}"
    if not folder.exists():
        if kind == "eagle":
            fit(make_draft(folder, target, kind, "qwen3"), arch)
        elif kind == "eagle3":
            make_draft(folder, target, kind, "llama")
        else:
            num_layers = 1 if arch == "glm4_moe" else NUM_LAYERS  # of which "mtp" uses the first one
            add_mtp(shutil.copytree(target, folder), num_layers)
            fit_layers(folder, arch, num_layers)
    if kind in ("eagle", "eagle3"):
        return ModelRunner.load(target, device="cpu", dtype="float32", draft=DraftSource(kind, folder))
    source = DraftSource("mtp", folder, NUM_LAYERS if kind == "two layers" else 1)
    return ModelRunner.load(folder, device="cpu", dtype="float32", draft=source)


@torch.no_grad()
def fit(folder: Path, arch: Architecture) -> None:
    """Makes an EAGLE draft linear, and its product the best one for the answers of the reference: one proposal of seven
    is right."""
    expected = reference(arch)
    model = model_of(expected.folder)
    inputs, outputs = [], []
    for prompt, continuation in zip(expected.prompts, expected.continuations, strict=True):
        ids = torch.tensor([*prompt, *continuation])
        hidden_SE = model(ids[None], output_hidden_states=True).hidden_states[-1][0]
        embedded_SE = model.get_input_embeddings()(ids)
        inputs.append(torch.cat((embedded_SE[1:], hidden_SE[:-1]), -1)[len(prompt) - 1 :])
        outputs.append(hidden_SE[len(prompt) :])
    tensors = load_file(folder / "model.safetensors")
    for name in ("fc.bias", "layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight"):
        tensors[name].zero_()
    tensors["fc.weight"] = torch.linalg.lstsq(torch.cat(inputs), torch.cat(outputs)).solution.T.contiguous()
    save_file(tensors, folder / "model.safetensors")


@torch.no_grad()
def fit_layers(folder: Path, arch: Architecture, num_layers: int) -> None:
    """The same for MTP layers: each joins what the one before gave with the token behind it. That of a GLM keeps its
    own embedding, and its head becomes the model's."""
    expected, is_glm = reference(arch), arch == "glm4_moe"
    model = model_of(expected.folder)
    texts = [torch.tensor([*each, *more]) for each, more in zip(expected.prompts, expected.continuations, strict=True)]
    features = [model(ids[None], output_hidden_states=True).hidden_states[-1][0] for ids in texts]
    hidden = features
    tensors = load_file(folder / "model.safetensors")
    embedding_VE, project = tensors["model.embed_tokens.weight"], "eh_proj" if is_glm else "input_proj"
    norms = ("hnorm", "enorm", "shared_head.norm") if is_glm else [f"{name}_layernorm" for name in MTP_NORMS]
    for index in range(num_layers):
        layer = f"model.layers.{model.config.num_hidden_layers}" if is_glm else f"model.mtp_layers.{index}"
        for name in tensors:
            if name.startswith(f"{layer}.") and name.endswith(("o_proj.weight", "down_proj.weight")):
                tensors[name].zero_()
        for name in norms:
            tensors[f"{layer}.{name}.weight"].fill_(1)
        if is_glm:
            tensors[f"{layer}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
            embedding_VE = tensors[f"{layer}.embed_tokens.weight"]
        inputs = []
        for ids, hidden_SE in zip(texts, hidden, strict=True):
            after_SE = embedding_VE[ids[1 + index :]]
            both = (hidden_SE[: len(after_SE)], after_SE)[:: -1 if is_glm else 1]
            inputs.append(torch.cat([F.rms_norm(each, each.shape[-1:], eps=1e-5) for each in both], -1))
        wanted = torch.cat([each[1 + index :] for each in features])
        weight = torch.linalg.lstsq(torch.cat(inputs), wanted).solution.T.contiguous()
        tensors[f"{layer}.{project}.weight"] = weight
        hidden = [F.rms_norm(each @ weight.T, weight.shape[:1], eps=1e-5) for each in inputs]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def answers(cluster: Cluster, arch: Architecture) -> list[tuple[list[int], list[int]]]:
    """For every prompt of the reference: a greedy answer, with log-probabilities, and a sampled one without."""
    for index, prompt in enumerate(reference(arch).prompts):
        cluster.assign(f"g{index}", list(prompt), replace(GREEDY, logprobs=LogprobsAsked(5)))
        cluster.assign(f"s{index}", list(prompt), replace(SAMPLED, seed=index))
    cluster.run()
    cluster.check()
    cluster.close()
    assert not cluster.failures
    indices = range(len(reference(arch).prompts))
    return [(cluster.answers[f"g{index}", 0].ids, cluster.answers[f"s{index}", 0].ids) for index in indices]


@pytest.mark.parametrize(
    ("arch", "topology", "page_size", "overlap"),
    [
        *first(1, [("llama", "1P1D", 16, True), ("qwen3", "1U", 1, True), ("llama", "1U", 16, False)], num_broad=1),
        *map(full, [("qwen3", "1P1D", 16, True), ("llama", "1U", 1, True), ("qwen3", "1U", 16, False)]),
    ],
)
@pytest.mark.parametrize(("kind", "tree"), [*((kind, CHAIN) for kind in KINDS), ("eagle", TREE), ("eagle3", TREE)])
def test_tokens_are_those_without_a_draft(
    kind: str, tree: tuple[int, int], topology: str, page_size: int, overlap: bool, arch: Architecture, scratch: Path
) -> None:
    check_a_draft(kind, tree, topology, page_size, overlap, arch, scratch)


WAYS = (("eagle", CHAIN), ("eagle3", TREE))


@pytest.mark.parametrize(
    ("arch", "kind", "tree"),
    [
        *first(2, [(arch, *way) for arch, way in zip((*OF_EXPERTS, *WITH_WINDOWS), cycle(WAYS), strict=False)]),
        *(full((arch, *way)) for arch, way in zip((*OF_EXPERTS, *WITH_WINDOWS), cycle(WAYS[::-1]), strict=False)),
    ],
)
def test_tokens_of_experts_are_those_without_a_draft(
    kind: str, tree: tuple[int, int], arch: Architecture, scratch: Path
) -> None:
    check_a_draft(kind, tree, "1P1D", 16, True, arch, scratch)


@pytest.mark.parametrize(
    ("topology", "page_size", "overlap"),
    first(2, [("1P1D", 16, True), ("1U", 1, True), ("1U", 16, False), ("1P1D", 1, False), ("2P2D", 16, True)]),
)
def test_tokens_of_a_glm_with_its_own_layer_are_those_without(
    topology: str, page_size: int, overlap: bool, scratch: Path
) -> None:
    check_a_draft("mtp", CHAIN, topology, page_size, overlap, "glm4_moe", scratch)


@pytest.mark.parametrize("combination", [full(each) for each in PAIRWISE if each.arch in OF_EXPERTS], ids=str)
def test_tokens_of_experts_in_every_combination(combination: Combination, scratch: Path) -> None:
    """Chains on a serial scheduler, trees with overlap, whatever the pages and the topology."""
    kind, tree = ("eagle3", TREE) if combination.overlap else ("eagle", CHAIN)
    where = combination.topology, combination.page_size, combination.overlap, combination.arch
    check_a_draft(kind, tree, *where, scratch)


def check_a_draft(
    kind: str, tree: tuple[int, int], topology: str, page_size: int, overlap: bool, arch: Architecture, scratch: Path
) -> None:
    options: dict[str, Any] = {"page_size": page_size, "num_pages": NUM_KV_TOKENS // page_size, "overlap": overlap}
    num_steps = NUM_LAYERS if kind == "two layers" else 3
    cluster = Cluster(runner_with(kind, arch, scratch), topology, tree=tree, num_steps=num_steps, **options)
    decoding = [*filter(None, (each.planner.speculation for each in cluster.unifieds or cluster.decodes.values()))]
    found = answers(cluster, arch)
    wanted = answers(Cluster(runner_of(arch), topology, **options), arch)
    model = model_of(reference(arch).folder)

    num_equal = 0
    for index, prompt in enumerate(reference(arch).prompts):
        assert tuple(found[index][0]) == reference(arch).continuations[index]
        scored = cluster.answers[f"g{index}", 0].logprobs
        assert sorted(scored) == list(range(NUM_TOKENS))
        check_logprobs(model, prompt, found[index][0], scored)
        both = zip(found[index][1], wanted[index][1], strict=True)
        differs = next((place for place, (one, other) in enumerate(both) if one != other), NUM_TOKENS)
        seen = margins(model, prompt, wanted[index][1], replace(SAMPLED, seed=index))
        assert differs == NUM_TOKENS or not seen[differs].is_safe
        num_equal += differs
    assert num_equal > 0.9 * NUM_TOKENS * len(found)
    assert decoding and all(speculation.proposed[0] > 0 for speculation in decoding)
    accepted = [sum(counts) for counts in zip(*(speculation.accepted for speculation in decoding), strict=True)]
    assert kind == "eagle3" or accepted[0] > 20
    assert kind != "two layers" or (len(accepted) == NUM_LAYERS and accepted[1] > 4)
