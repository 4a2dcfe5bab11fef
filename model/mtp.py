"""Draft layers in the target's own folder: several, of which the i-th drafts the i-th next token, or a single one.

Multi-token prediction: DeepSeek-AI 2024 (DeepSeek-V3, section 2.2). A layer joins the norms of a hidden state and of a
token's embedding by one product and is an ordinary decoder layer from there on, with experts where the target has them.
It begins with the output of the target's final norm; its own output, normed, is the hidden state for what follows, and
a head proposes from it. `MtpNames` in runtime/model_parts.py has the names and the order of MiMo (Xiaomi 2025) and of
GLM-4.5 (Zhipu AI 2025), whose layer may have an embedding and a head of its own.
Shapes: T tokens, E hidden, V vocabulary.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from model.attention import AttentionBackend
from model.checkpoint import Checkpoint, Taken
from model.cpu_draft import DraftParts
from model.cpu_kernels import CpuKernels
from model.cpu_products import CpuLinear
from model.layer import LayerPass
from model.linear import AnyLinear, Pack
from model.loaded_draft import LoadedDraft
from model.passes import Passes
from model.transformer import Decoder, text_prefix
from model.weights import Weights
from protocol.errors import CheckpointError, brief_name
from runtime.draft_config import DraftConfig
from runtime.model_parts import MtpNames

_NUMBER: Final = re.compile(r"\.([0-9]{1,9})\.")  # of a layer


@dataclass(frozen=True)
class Joint:
    """The weights around one decoder layer."""

    token_norm_E: Tensor
    hidden_norm_E: Tensor
    project: AnyLinear
    final_norm_E: Tensor
    token_first: bool  # `project` reads the token before the hidden state


@dataclass(frozen=True, kw_only=True)
class MtpDraft(LoadedDraft):
    """See Draft in model/draft.py. `forward` runs the first layer; `run_layer` runs any."""

    joints: tuple[Joint, ...]

    def first(self, count: int) -> "MtpDraft":
        """The draft with its first `count` layers, or all if it has fewer. The others take no KV."""
        at_once = self.at_once[:count]
        return replace(self, layers=self.layers[:count], joints=self.joints[:count], at_once=at_once)

    def _parts(self, index: int) -> DraftParts | None:
        joint = self.joints[index]
        if not isinstance(joint.project, CpuLinear) or not isinstance(self.head, CpuLinear):
            return None
        return DraftParts(
            self.embedding_VE,
            joint.project,
            self.head,
            token_norm_E=joint.token_norm_E,
            hidden_norm_E=joint.hidden_norm_E,
            hidden_first=not joint.token_first,
            output_norm_E=joint.final_norm_E,
        )

    def _run(self, index: int, through: LayerPass, embedded_TE: Tensor, hidden_TE: Tensor) -> Tensor:
        joint, norm = self.joints[index], self.passes.rms_norm
        both = (norm(hidden_TE, joint.hidden_norm_E), norm(embedded_TE, joint.token_norm_E))
        x_TE = joint.project(torch.cat(both[::-1] if joint.token_first else both, dim=-1))
        at, layer = self.first_layer + index, self.layers[index]
        return through.run(at, layer, x_TE, next_norm_E=joint.final_norm_E)[1]


def load_mtp(
    checkpoint: Checkpoint,
    config: DraftConfig,
    target: Decoder,
    passes: Passes,
    attention: AttentionBackend,
    *,
    pack: Pack | None = None,
) -> MtpDraft:
    """Loads the draft layers of `target` from its checkpoint. CheckpointError if there are more or fewer of them, or
    one does not fit."""
    assert config.mtp is not None
    names, like = config.mtp, target.embedding_VE
    kernels = passes if isinstance(passes, CpuKernels) else None
    weights = Weights(checkpoint, config.layer, like.dtype, like.device, pack, kernels=kernels)
    model = text_prefix(checkpoint)
    layers, first = f"{model}.{names.layers}", target.config.num_layers if names.is_behind else 0
    prefixes = [f"{layers}.{first + index}" for index in range(config.layer.num_layers)]
    held = set(_of_layers(checkpoint, layers, first))
    if not held:
        raise CheckpointError(
            f"{checkpoint.folder}: got no tensor {prefixes[0]}.*, expected those of {len(prefixes)} draft layers, which"
            " config.json names (num_nextn_predict_layers)"
        )

    own_embedding = _own_table(weights, prefixes[0], names.embedding, f"{model}.embed_tokens.weight")
    own_head = _own_table(weights, prefixes[0], names.head, "lm_head.weight")
    vocab_size, size = config.layer.vocab_size, config.layer.hidden_size
    draft = MtpDraft(
        config=config,
        first_layer=target.config.num_layers,
        passes=passes,
        attention=attention,
        rope=target.ropes[0],
        embedding_VE=weights.tensor(f"{own_embedding}.weight", vocab_size, size) if own_embedding else like,
        layers=tuple(weights.layer(*each) for each in zip(prefixes, config.layer.layers, strict=True)),
        head=weights.head(vocab_size, own_head) if own_head else target.head,
        joints=tuple(_joint(weights, prefix, names) for prefix in prefixes),
    )
    if unknown := sorted(held - checkpoint.taken.keys()):
        raise CheckpointError(
            f"{checkpoint.folder}: got tensor {brief_name(unknown[0])}, expected none but those that"
            f" {len(prefixes)} draft layers (num_nextn_predict_layers of config.json) have"
        )
    return draft.in_one_call()


def _joint(weights: Weights, prefix: str, names: MtpNames) -> Joint:
    size = weights.config.hidden_size
    return Joint(
        token_norm_E=weights.tensor(f"{prefix}.{names.token_norm}.weight", size),
        hidden_norm_E=weights.tensor(f"{prefix}.{names.hidden_norm}.weight", size),
        project=weights.finished(weights.linear(f"{prefix}.{names.project}", size, 2 * size, bias=False)),
        final_norm_E=weights.tensor(f"{prefix}.{names.final_norm}.weight", size),
        token_first=names.token_first,
    )


def _own_table(weights: Weights, prefix: str, table: str | None, of_target: str) -> str | None:
    """What the layer's own embedding or head is called, if it has one that is not the target's. One that repeats the
    target's is not held twice."""
    checkpoint, name = weights.checkpoint, f"{prefix}.{table}.weight"
    if table is None or name not in checkpoint:
        return None
    is_equal = checkpoint.are_equal(name, of_target)
    checkpoint.forget(name)
    if not is_equal:
        return f"{prefix}.{table}"
    checkpoint.taken[name] = Taken(0, weights.dtype, is_view=False)
    return None


def _of_layers(checkpoint: Checkpoint, layers: str, first: int) -> Iterator[str]:
    """The names of the tensors in layers from number `first` on; 0: of all that is called like them."""
    for name in checkpoint:
        number = _NUMBER.match(name, len(layers))
        is_behind = number is not None and int(number[1]) >= first
        if name.startswith(f"{layers}.") and (is_behind or not first):
            yield name
