"""Several draft layers in launches, in float32: what each proposes equals a reference without pages or batches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.graphs import GraphedDraft, GraphedRunner
from model.loaded_draft import LoadedDraft
from protocol.messages_gateway import SamplingParams
from scheduler.draft_shape import DraftShape
from scheduler.speculation import layers as draft_layers
from testkit.checkpoints import Architecture, greedy_reference
from tests.cluster import Cluster
from tests.model.driving import random_prompt
from tests.model.speculating import again, assert_near, loaded_mtp, true_features

NUM_TOKENS = 20


@pytest.mark.parametrize(
    ("kind", "num_layers", "prompt_len", "sizes"),
    [
        ("qwen3", 2, 1, {"page_size": 1, "chunk_size": 0}),
        ("qwen3", 2, 33, {"page_size": 4, "chunk_size": 8}),
        ("qwen2", 2, 9, {"page_size": 16, "chunk_size": 4}),  # a MiMo
        ("qwen2", 3, 2, {"page_size": 1, "chunk_size": 1}),
        ("qwen3", 3, 17, {"page_size": 16, "chunk_size": 16}),
    ],
)
@pytest.mark.parametrize("topology", ["1U", "1P1D"])
def test_logits_of_every_layer_in_every_launch(
    kind: Architecture,
    num_layers: int,
    prompt_len: int,
    sizes: dict[str, Any],
    topology: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, reference = loaded_mtp(tmp_path, kind, num_layers)
    seen, lengths = list[tuple[int, Tensor]](), list[int]()  # with the committed tokens; the one behind them is known
    read, logits = draft_layers._read, LoadedDraft.logits

    def reading(*args: Any, **options: Any) -> Tensor:
        window, last_B = args[2], args[6]
        if last_B.numel():
            lengths.append(int(window.input.positions_T[window.after_JP.shape[1] + int(last_B)]) + 1)
        return read(*args, **options)

    def seeing(self: LoadedDraft, hidden_LE: Tensor) -> Tensor:
        seen.append((lengths[-1], logits(self, hidden_LE)))
        return seen[-1][1].clone()

    monkeypatch.setattr(draft_layers, "_read", reading)
    monkeypatch.setattr(LoadedDraft, "logits", seeing)
    prompt = random_prompt(prompt_len, 307, prompt_len)
    cluster = Cluster(runner, topology, num_steps=num_layers, num_pages=256, **sizes)
    cluster.assign("r", prompt, SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0))
    cluster.run()
    cluster.close()
    tokens = [*prompt, *cluster.answers["r", 0].ids]
    assert tokens[prompt_len:] == greedy_reference(tmp_path, [prompt], NUM_TOKENS)[0]

    launches = [seen[at : at + num_layers] for at in range(0, len(seen), num_layers)]
    assert launches[0][0][0] == prompt_len and len(launches) > 5
    features_SE = true_features(tmp_path, tokens, ())
    for launch in launches:
        length = launch[0][0]
        if length >= len(tokens):
            break  # behind the answer's end
        known, hidden_SE = tokens[: length + 1], features_SE[:length]
        for layer, (at, logits_1V) in enumerate(launch):
            assert at == length
            logits_SV, hidden_SE = reference.run(torch.tensor(known[1 + layer :]), hidden_SE, layer)
            assert_near(logits_1V, logits_SV[-1:])
            known.append(int(logits_1V.argmax()))


def test_all_layers_of_a_full_batch_come_from_graphs(tmp_path: Path) -> None:
    plain, _ = loaded_mtp(tmp_path, "qwen3", 2)
    runner = GraphedRunner(plain, again)
    cluster = Cluster(runner, "1U", num_steps=2, num_pages=64, page_size=4, max_requests=2)
    (worker,) = cluster.unifieds
    cluster.executor(worker).warm_up(DraftShape(2))
    prompts = [random_prompt(9, 307, index) for index in range(2)]
    for index, prompt in enumerate(prompts):
        cluster.assign(f"r{index}", prompt, SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0))
    cluster.run()
    cluster.close()
    wanted = greedy_reference(tmp_path, prompts, NUM_TOKENS)
    assert [cluster.answers[f"r{index}", 0].ids for index in range(2)] == wanted
    draft = runner.draft
    assert isinstance(draft, GraphedDraft)
    first, second = (graphs.num_replays for graphs in draft.graphs[:2])
    assert first == second > runner.num_replays > 10, "one more for each launch in which a choice begins"
