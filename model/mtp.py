"""Several draft layers in the target's own folder, as MiMo has them: the i-th drafts the i-th next token.

Multi-token prediction: DeepSeek-AI 2024 (DeepSeek-V3, section 2.2), with MiMo's names of tensors (Xiaomi 2025). A layer
joins the norms of a hidden state and of a token's embedding by one product and is an ordinary decoder layer from there
on. Its output, normed, is the hidden state for the next layer, and the target's head proposes from it.
Shapes: T tokens, E hidden.
"""

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from model.attention import AttentionBackend
from model.checkpoint import Checkpoint
from model.cpu_draft import DraftParts
from model.cpu_products import CpuLinear
from model.layer import LayerPass
from model.linear import AnyLinear, Pack
from model.loaded_draft import LoadedDraft
from model.passes import Passes
from model.transformer import Decoder
from model.weights import Weights
from protocol.errors import CheckpointError, brief_name
from runtime.draft_config import DraftConfig

PREFIX: Final = "model.mtp_layers"


@dataclass(frozen=True)
class Joint:
    """The weights around one decoder layer."""

    token_norm_E: Tensor
    hidden_norm_E: Tensor
    project: AnyLinear
    final_norm_E: Tensor


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
            hidden_first=True,
            output_norm_E=joint.final_norm_E,
        )

    def _run(self, index: int, through: LayerPass, embedded_TE: Tensor, hidden_TE: Tensor) -> Tensor:
        joint, norm = self.joints[index], self.passes.rms_norm
        both = (norm(hidden_TE, joint.hidden_norm_E), norm(embedded_TE, joint.token_norm_E))
        x_TE = joint.project(torch.cat(both, dim=-1))
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
    size, like = config.layer.hidden_size, target.embedding_VE
    weights = Weights(checkpoint, config.layer, like.dtype, like.device, pack)
    prefixes = [f"{PREFIX}.{index}" for index in range(config.layer.num_layers)]
    draft = MtpDraft(
        config=config,
        first_layer=target.config.num_layers,
        passes=passes,
        attention=attention,
        rope=target.ropes[0],
        embedding_VE=like,
        layers=tuple(weights.layer(*each) for each in zip(prefixes, config.layer.layers, strict=True)),
        head=target.head,
        joints=tuple(
            Joint(
                token_norm_E=weights.tensor(f"{prefix}.token_layernorm.weight", size),
                hidden_norm_E=weights.tensor(f"{prefix}.hidden_layernorm.weight", size),
                project=weights.finished(weights.linear(f"{prefix}.input_proj", size, 2 * size, bias=False)),
                final_norm_E=weights.tensor(f"{prefix}.final_layernorm.weight", size),
            )
            for prefix in prefixes
        ),
    )
    unknown = sorted(name for name in set(checkpoint) - checkpoint.taken.keys() if name.startswith(f"{PREFIX}."))
    if unknown:
        raise CheckpointError(
            f"{checkpoint.folder}: got tensor {brief_name(unknown[0])}, expected none but those that"
            f" {len(prefixes)} draft layers (num_nextn_predict_layers of config.json) have"
        )
    return draft.in_one_call()
