"""Tiny random drafts in the published layouts, and what they compute: plain torch, float32, whole texts, no pages."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GLM = "Glm4MoeForCausalLM"
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
DRAFT_VOCAB = 101


def make_draft(
    folder: Path,
    target: Path,
    algorithm: str,
    kind: str = "llama",
    seed: int = 0,
    *,
    has_all: bool = True,
    **fields: Any,
) -> Path:
    """Writes a random draft for the model in `target` and returns its folder. `fields` are those of its config.json.

    `has_all`: with all that a checkpoint may leave out: a bias of fc, an input norm (EAGLE), an embedding, a head,
    d2t (EAGLE-3).
    """
    theirs = json.loads((target / "config.json").read_text())
    config = {
        "architectures": [ARCHITECTURES[kind]],
        "vocab_size": theirs["vocab_size"],
        "hidden_size": theirs["hidden_size"],
        "intermediate_size": 72,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16 if kind == "qwen3" else 12,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0,
        "tie_word_embeddings": False,
        "attention_bias": kind == "llama",
    }
    if algorithm == "eagle3":
        config |= {"draft_vocab_size": DRAFT_VOCAB if has_all else theirs["vocab_size"]}
        config |= {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    config |= fields
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        _tensors(config, algorithm, kind, torch.Generator().manual_seed(seed), has_all), folder / "model.safetensors"
    )
    return folder


def _tensors(
    config: Mapping[str, Any], algorithm: str, kind: str, generator: torch.Generator, has_all: bool
) -> dict[str, Tensor]:
    size, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    is_eagle3 = algorithm == "eagle3"
    layer = "midlayer" if is_eagle3 else "layers.0"
    inputs = 2 * size if is_eagle3 else size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (size, (3 if is_eagle3 else 2) * size),
        f"{layer}.post_attention_layernorm.weight": (size,),
        f"{layer}.mlp.gate_proj.weight": (inner, size),
        f"{layer}.mlp.up_proj.weight": (inner, size),
        f"{layer}.mlp.down_proj.weight": (size, inner),
    }
    for name, rows, columns in (
        ("q", heads * dim, inputs),
        ("k", kv_heads * dim, inputs),
        ("v", kv_heads * dim, inputs),
        ("o", size, heads * dim),
    ):
        shapes[f"{layer}.self_attn.{name}_proj.weight"] = (rows, columns)
        if config["attention_bias"]:
            shapes[f"{layer}.self_attn.{name}_proj.bias"] = (rows,)
    if kind == "qwen3":
        shapes |= {f"{layer}.self_attn.{name}_norm.weight": (dim,) for name in ("q", "k")}
    if is_eagle3:
        shapes |= {f"{layer}.{name}.weight": (size,) for name in ("input_layernorm", "hidden_norm")}
        shapes |= {"norm.weight": (size,)}
        if has_all:
            shapes |= {"lm_head.weight": (config["draft_vocab_size"], size), "embed_tokens.weight": (vocab, size)}
    elif has_all:
        shapes |= {f"{layer}.input_layernorm.weight": (size,), "fc.bias": (size,)}

    tensors = {}
    for name, shape in shapes.items():
        random = torch.randn(shape, generator=generator) * 0.2
        tensors[name] = random + 1 if "norm" in name else random
    if is_eagle3 and has_all:
        chosen = torch.randperm(vocab, generator=generator)[: config["draft_vocab_size"]].sort().values
        tensors["d2t"] = chosen - torch.arange(len(chosen))
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, chosen, True)
    return tensors


def add_mtp(target: Path, num_layers: int, seed: int = 0) -> None:
    """Adds random draft layers to the model in `target`, in MiMo's layout, or in that of GLM-4.5 with an embedding and
    a head of its own if the model is one."""
    path = target / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"num_nextn_predict_layers": num_layers}))
    tensors, generator = load_file(target / "model.safetensors"), torch.Generator().manual_seed(seed)
    is_glm, size, last = config["architectures"] == [GLM], config["hidden_size"], config["num_hidden_layers"] - 1
    like = f"model.layers.{last if is_glm else 0}."
    parts = {name.removeprefix(like): tuple(t.shape) for name, t in tensors.items() if name.startswith(like)}
    if is_glm:
        parts |= {f"{name}.weight": (size,) for name in ("enorm", "hnorm", "shared_head.norm")}
        parts |= {"eh_proj.weight": (size, 2 * size)}
        parts |= {f"{name}.weight": (config["vocab_size"], size) for name in ("embed_tokens", "shared_head.head")}
    else:
        parts |= {f"{name}_layernorm.weight": (size,) for name in ("token", "hidden", "final")}
        parts["input_proj.weight"] = (size, 2 * size)
    for index in range(num_layers):
        layer = f"model.layers.{last + 1 + index}" if is_glm else f"model.mtp_layers.{index}"
        for name, shape in parts.items():
            random = torch.randn(shape, generator=generator) * (0.6 if name == "mlp.gate.weight" else 0.2)
            tensors[f"{layer}.{name}"] = random + 1 if "norm" in name else random
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


class DraftReference:
    """A draft's folder beside its target's, or twice the target's for its MTP layers: every slot of a text at once.

    Shapes: S slots, E hidden, F numbers of a target's feature, V the target's vocabulary, H heads, D head_dim.
    """

    def __init__(self, folder: Path, target: Path) -> None:
        self.w = load_file(folder / "model.safetensors")
        self.config = json.loads((folder / "config.json").read_text())
        theirs = load_file(target / "model.safetensors")
        self.embedding = self.w.get("embed_tokens.weight", theirs["model.embed_tokens.weight"])
        self.head = self.w.get("lm_head.weight", theirs.get("lm_head.weight", theirs["model.embed_tokens.weight"]))
        self.is_eagle3, self.is_mtp = "midlayer.hidden_norm.weight" in self.w, folder == target
        self.is_glm = self.is_mtp and self.config["architectures"] == [GLM]
        self.share_rotated = 0.5 if self.is_glm else 1.0
        if self.is_mtp:
            self.config["rope_theta"] = self.config.get("rope_theta") or self.config["rope_parameters"]["rope_theta"]
        if self.is_glm:
            self.glm = f"model.layers.{self.config['num_hidden_layers']}"
            self.embedding = self.w.get(f"{self.glm}.embed_tokens.weight", self.embedding)
            self.head = self.w.get(f"{self.glm}.shared_head.head.weight", self.head)

    def fuse(self, features_SF: Tensor) -> Tensor:
        """EAGLE-3: g = fc([l; m; h]). EAGLE: the feature."""
        return self._linear("fc", features_SF) if self.is_eagle3 else features_SF

    def run(self, after_S: Tensor, hidden_SE: Tensor, index: int = 0) -> tuple[Tensor, Tensor]:
        """(logits (S, V), hidden states (S, E)) of slots 0..S-1 from layer `index`, the tokens after them, states."""
        embedded_SE = self.embedding[after_S]
        if self.is_glm:
            normed = self._norm(f"{self.glm}.enorm", embedded_SE), self._norm(f"{self.glm}.hnorm", hidden_SE)
            x_SE = self._linear(f"{self.glm}.eh_proj", torch.cat(normed, -1))
            out_SE = self._layer(self.glm, x_SE, self._norm(f"{self.glm}.input_layernorm", x_SE))
            out_SE = self._norm(f"{self.glm}.shared_head.norm", out_SE)
            return out_SE @ self.head.T, out_SE
        if self.is_mtp:
            layer = f"model.mtp_layers.{index}"
            normed = (
                self._norm(f"{layer}.hidden_layernorm", hidden_SE),
                self._norm(f"{layer}.token_layernorm", embedded_SE),
            )
            x_SE = self._linear(f"{layer}.input_proj", torch.cat(normed, -1))
            out_SE = self._layer(layer, x_SE, self._norm(f"{layer}.input_layernorm", x_SE))
            out_SE = self._norm(f"{layer}.final_layernorm", out_SE)
            return out_SE @ self.head.T, out_SE
        if self.is_eagle3:
            normed = (
                self._norm("midlayer.input_layernorm", embedded_SE),
                self._norm("midlayer.hidden_norm", hidden_SE),
            )
            out_SE = self._layer("midlayer", hidden_SE, torch.cat(normed, -1))
            logits_SN = self._norm("norm", out_SE) @ self.head.T
            if "d2t" not in self.w:
                return logits_SN, out_SE
            logits_SV = torch.full((len(after_S), self.config["vocab_size"]), float("-inf"))
            for draft_id, offset in enumerate(self.w["d2t"].tolist()):
                logits_SV[:, draft_id + offset] = logits_SN[:, draft_id]
            return logits_SV, out_SE
        x_SE = self._linear("fc", torch.cat((embedded_SE, hidden_SE), -1))
        has_norm = "layers.0.input_layernorm.weight" in self.w
        out_SE = self._layer("layers.0", x_SE, self._norm("layers.0.input_layernorm", x_SE) if has_norm else x_SE)
        return out_SE @ self.head.T, out_SE

    def _layer(self, layer: str, x_SE: Tensor, inputs: Tensor) -> Tensor:
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k, v = (
            self._linear(f"{layer}.self_attn.{name}_proj", inputs).unflatten(-1, (count, -1))
            for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        if f"{layer}.self_attn.q_norm.weight" in self.w:
            q, k = self._norm(f"{layer}.self_attn.q_norm", q), self._norm(f"{layer}.self_attn.k_norm", k)
        q, k = self._rotated(q), self._rotated(k)
        future = torch.ones(len(x_SE), len(x_SE), dtype=torch.bool).triu(1)
        outs = []
        for head in range(heads):
            of = head * kv_heads // heads
            scores = (q[:, head] @ k[:, of].T) / q.shape[-1] ** 0.5
            outs.append(scores.masked_fill(future, float("-inf")).softmax(-1) @ v[:, of])
        x_SE = x_SE + self._linear(f"{layer}.self_attn.o_proj", torch.cat(outs, -1))
        normed = self._norm(f"{layer}.post_attention_layernorm", x_SE)
        return x_SE + (self._experts if self.is_glm else self._mlp)(f"{layer}.mlp", normed)

    def _mlp(self, prefix: str, x: Tensor) -> Tensor:
        gate, up = (self._linear(f"{prefix}.{name}_proj", x) for name in ("gate", "up"))
        return self._linear(f"{prefix}.down_proj", gate * torch.sigmoid(gate) * up)

    def _experts(self, prefix: str, x_SE: Tensor) -> Tensor:
        """Token by token: sigmoid scores, a bias for the choice only, the best groups by their best two."""
        config, out_SE = self.config, self._mlp(f"{prefix}.shared_experts", x_SE)
        size = config["n_routed_experts"] // config["n_group"]
        for slot, x_E in enumerate(x_SE):
            scores = torch.sigmoid(self.w[f"{prefix}.gate.weight"] @ x_E)
            ranked = scores + self.w[f"{prefix}.gate.e_score_correction_bias"]
            groups = ranked.view(-1, size).topk(2).values.sum(-1).argsort(descending=True)[: config["topk_group"]]
            allowed = [int(group) * size + at for group in groups for at in range(size)]
            best = sorted(allowed, key=lambda expert: -float(ranked[expert]))
            chosen, other = best[: config["num_experts_per_tok"]], best[config["num_experts_per_tok"]]
            assert float(ranked[chosen[-1]] - ranked[other]) > 1e-5, "two experts nearly tie: change the seed"
            total = float(scores[chosen].sum()) if config["norm_topk_prob"] else 1.0
            for expert in chosen:
                weight = float(scores[expert]) / total * config["routed_scaling_factor"]
                out_SE[slot] += weight * self._mlp(f"{prefix}.experts.{expert}", x_E)
        return out_SE

    def _linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def _norm(self, name: str, x: Tensor) -> Tensor:
        mean = x.pow(2).mean(-1, keepdim=True)
        eps: float = self.config["rms_norm_eps"]
        return x / (mean + eps).sqrt() * self.w[f"{name}.weight"]

    def _rotated(self, x_SHD: Tensor) -> Tensor:
        half = int(x_SHD.shape[-1] * self.share_rotated) // 2
        angle = torch.arange(len(x_SHD))[:, None] / self.config["rope_theta"] ** (torch.arange(half) / half)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b, others = x_SHD[..., :half], x_SHD[..., half : 2 * half], x_SHD[..., 2 * half :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, others), -1)
