"""Greedy tokens equal transformers' generate in float32, whatever the pages, chunks and batches."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.runner import ModelRunner
from testkit.checkpoints import (
    ARCHITECTURES,
    WINDOW,
    WITH_WINDOWS,
    Architecture,
    greedy_reference,
    make_checkpoint,
)
from tests.model.driving import Lane, Lanes, random_prompt
from tests.selecting import first

pytestmark = pytest.mark.slow

VOCAB = 307
PROMPT_LENS = (1, 16, 45, 90)
NUM_TOKENS = 24
SPELLINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0},
    "yarn of its own": {
        "rope_type": "yarn",
        "factor": 3.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "truncate": False,
        "attention_factor": 1.3,
        "rope_theta": 10000.0,
    },
    "yarn with mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
        "rope_theta": 10000.0,
    },
}


@dataclass(frozen=True)
class Reference:
    prompts: tuple[tuple[int, ...], ...]
    continuations: tuple[tuple[int, ...], ...]


def reference(folder: Path, prompt_lens: Sequence[int] = PROMPT_LENS, num_tokens: int = NUM_TOKENS) -> Reference:
    prompts = tuple(tuple(random_prompt(length, VOCAB, seed)) for seed, length in enumerate(prompt_lens))
    return Reference(prompts, tuple(map(tuple, greedy_reference(folder, prompts, num_tokens))))


@lru_cache
def _made(tmp: Path, arch: Architecture) -> tuple[ModelRunner, Reference]:
    folder = make_checkpoint(tmp / arch, arch)
    return ModelRunner.load(folder, device="cpu"), reference(folder)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRunner, Reference]:
    return _made(tmp_path_factory.getbasetemp() / "parity", request.param)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [32, None])
def test_tokens_equal_transformers(case: tuple[ModelRunner, Reference], page_size: int, chunk: int | None) -> None:
    runner, expected = case
    lanes = Lanes(runner, page_size, poison=True)
    for prompt, continuation in zip(expected.prompts, expected.continuations, strict=True):
        assert tuple(lanes.generate(prompt, NUM_TOKENS, chunk)) == continuation


@pytest.mark.parametrize("arch", first(1, ARCHITECTURES, num_broad=4))
def test_long_continuations(tmp_path: Path, arch: Architecture) -> None:
    folder = make_checkpoint(tmp_path, arch, seed={"qwen3_moe": 3, "gpt_oss": 0}.get(arch, 2))
    expected = reference(folder, (1, 5, 16, 31, 32, 45, 90, 150), 64)
    runner = ModelRunner.load(folder, device="cpu")
    for page_size, chunk in ((1, 32), (16, None)):
        lanes = Lanes(runner, page_size)
        for prompt, continuation in zip(expected.prompts, expected.continuations, strict=True):
            assert tuple(lanes.generate(prompt, 64, chunk)) == continuation


def test_mixed_batches_change_no_token(case: tuple[ModelRunner, Reference]) -> None:
    """Chunks of some lanes beside decodes of others, lanes joining as they go."""
    runner, expected = case
    lanes = Lanes(runner, 16, poison=True)
    waiting = [lanes.lane(prompt, NUM_TOKENS) for prompt in expected.prompts]
    goals = {id(lane): len(lane.tokens) + NUM_TOKENS for lane in waiting}
    everyone, step = list(waiting), 0
    running: list[Lane] = []
    while waiting or any(len(lane.tokens) < goals[id(lane)] for lane in running):
        extends = [(lane, min(20, len(lane.tokens) - lane.done)) for lane in waiting[: 1 + step % 2]]
        decodes = [lane for lane in running if len(lane.tokens) < goals[id(lane)]]
        prompt_done = [lane for lane, count in extends if lane.done + count == len(lane.tokens)]
        lanes.step(extends, decodes)
        waiting = [lane for lane in waiting if lane not in prompt_done]
        running += prompt_done
        step += 1
    for lane, prompt, continuation in zip(everyone, expected.prompts, expected.continuations, strict=True):
        assert tuple(lane.tokens[len(prompt) :]) == continuation


@pytest.mark.parametrize("arch", WITH_WINDOWS)
def test_prompts_about_the_edge_of_a_window(tmp_path: Path, arch: Architecture) -> None:
    """Prompts that end before it, on it and behind it, and continuations across it."""
    folder = make_checkpoint(tmp_path, arch, seed=1)
    expected = reference(folder, (WINDOW - 9, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 1), 40)
    full = reference(make_checkpoint(tmp_path / "full", arch, seed=1, sliding_window=512), (WINDOW - 9, 49), 40)
    assert full.continuations[0] != expected.continuations[0], "the window changes the tokens"
    for cpu_kernels in (True, False):
        runner = ModelRunner.load(folder, device="cpu", cpu_kernels=cpu_kernels)
        for page_size, chunk in ((1, 7), (16, None), (16, 23), (48, 25)):
            lanes = Lanes(runner, page_size, poison=True)
            for prompt, continuation in zip(expected.prompts, expected.continuations, strict=True):
                assert tuple(lanes.generate(prompt, 40, chunk)) == continuation


@pytest.mark.parametrize("prefix", ["language_model.model", "model.language_model"])
def test_the_text_of_a_model_with_images(tmp_path: Path, prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    """As a folder with a vision part has it: fields in text_config, tensors behind another prefix."""
    plain = make_checkpoint(tmp_path / "plain", "gemma3")
    text = json.loads((plain / "config.json").read_text())
    tensors = {name.replace("model", prefix, 1): each for name, each in load_file(plain / "model.safetensors").items()}
    folder = tmp_path / "images"
    folder.mkdir()
    save_file({**tensors, "vision_tower.weight": torch.ones(2, 2)}, folder / "model.safetensors")
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "vision_config": {"depth": 1}}
    (folder / "config.json").write_text(json.dumps(outer))

    expected = reference(plain, (33,), 12)
    caplog.set_level("INFO", "baton")
    runner = ModelRunner.load(folder, device="cpu")
    assert tuple(Lanes(runner, 16).generate(expected.prompts[0], 12, 20)) == expected.continuations[0]
    assert "only the text of this model is served" in caplog.text
    [fields] = [each.__dict__["baton_fields"] for each in caplog.records if "only the text" in each.getMessage()]
    assert fields == {"without": "vision_tower"}


@pytest.mark.parametrize("spelling", ["new", "old"])
@pytest.mark.parametrize("kind", list(SPELLINGS))
def test_rope_scalings(tmp_path: Path, kind: str, spelling: str) -> None:
    folder = make_checkpoint(tmp_path, "llama", rope_parameters=dict(SPELLINGS[kind]))
    expected = reference(folder, (70,), 12)
    if spelling == "old":
        path = folder / "config.json"
        config = json.loads(path.read_text())
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if kind == "default" else rope
        path.write_text(json.dumps(config))
    runner = ModelRunner.load(folder, device="cpu")
    assert tuple(Lanes(runner, 16).generate(expected.prompts[0], 12)) == expected.continuations[0]


@pytest.mark.parametrize(
    "arch, overrides",
    [
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_key_value_heads": 4, "head_dim": 20}),
        ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
        ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
        ("mistral", {"sliding_window": 512}),
        ("qwen3_moe", {"norm_topk_prob": False, "decoder_sparse_step": 2, "attention_bias": True}),
        ("qwen3_moe", {"num_experts": 7, "num_experts_per_tok": 7, "mlp_only_layers": []}),
        ("mixtral", {"num_experts_per_tok": 1, "sliding_window": 512, "tie_word_embeddings": True}),
        ("mixtral", {"sliding_window": 24}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 24}),
        ("gemma3", {"layer_types": None, "num_hidden_layers": 7, "final_logit_softcapping": None}),
        ("gemma3", {"attention_bias": True, "rope_parameters": None, "query_pre_attn_scalar": 16}),
        ("gemma3", {"layer_types": ["full_attention"] * 3, "tie_word_embeddings": False}),
        ("minimax_m2", {"rotary_dim": 16, "num_key_value_heads": 1}),
        ("minimax_m2", {"rotary_dim": 2, "num_local_experts": 33, "num_experts_per_tok": 9}),
        ("glm4_moe", {"n_group": 1, "topk_group": 1, "use_qk_norm": False, "n_shared_experts": 2}),
        ("glm4_moe", {"first_k_dense_replace": 0, "norm_topk_prob": False, "attention_bias": False}),
        ("glm4_moe", {"first_k_dense_replace": 3, "partial_rotary_factor": 1.0, "n_group": 2, "topk_group": 1}),
    ],
)
def test_variants(tmp_path: Path, arch: Architecture, overrides: dict[str, Any]) -> None:
    folder = make_checkpoint(tmp_path, arch, **overrides)
    expected = reference(folder, (33,), 12)
    runner = ModelRunner.load(folder, device="cpu")
    assert tuple(Lanes(runner, 16).generate(expected.prompts[0], 12, 20)) == expected.continuations[0]


@pytest.mark.parametrize("arch", ["qwen3", "gemma3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_close(tmp_path: Path, dtype: str, arch: Architecture) -> None:
    folder = make_checkpoint(tmp_path, arch, dtype=dtype)
    exact, half = (ModelRunner.load(folder, device="cpu", dtype=kind) for kind in ("float32", "auto"))
    assert half.dtype == dtype and half.kv_layout(16).dtype == dtype
    prompt = random_prompt(50, VOCAB, 1)
    logits = []
    for runner in (exact, half):
        lanes = Lanes(runner, 16, poison=True)
        lanes.generate(prompt, 1, 30)
        lane = lanes.lane(prompt, 1)
        lanes.step([(lane, 50)])
        logits.append(lane.logits[0])
    assert logits[1].dtype == torch.float32
    similarity = torch.nn.functional.cosine_similarity(logits[0], logits[1], dim=0)
    assert float(similarity) > 0.995
