"""EAGLE and EAGLE-3 drafts: one decoder layer that reads the token after a position and the target's feature of it.

EAGLE (Li et al. 2024) fuses the token's embedding with the output of the target's final norm, and its output goes to
the target's head. EAGLE-3 (Li et al. 2025) fuses the inputs of three of the target's layers into one hidden state;
its attention reads the embedding beside that state, and its own head knows the draft's vocabulary only.
Names of tensors are those of the published checkpoints.
Shapes: T tokens, L wanted rows, E hidden, V the target's vocabulary, N the draft's, F numbers of a target's feature.
"""

from dataclasses import dataclass
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
from model.passes import Passes, Rope
from model.transformer import Decoder
from model.weights import Weights
from protocol.errors import CheckpointError, brief_name
from runtime.draft_config import DraftConfig

_UNREAD: Final = ("t2d", "rotary_emb.inv_freq")  # ends of names that checkpoints may have: d2t and rope say the same


@dataclass(frozen=True, kw_only=True)
class EagleDraft(LoadedDraft):
    """See Draft in model/draft.py."""

    fc: AnyLinear

    def _parts(self, index: int) -> DraftParts | None:
        if not isinstance(self.fc, CpuLinear) or not isinstance(self.head, CpuLinear):
            return None
        return DraftParts(self.embedding_VE, self.fc, self.head)

    def _run(self, index: int, through: LayerPass, embedded_TE: Tensor, hidden_TE: Tensor) -> Tensor:
        fused_TE = self.fc(torch.cat((embedded_TE, hidden_TE), dim=-1))
        return through.run(self.first_layer + index, self.layers[index], fused_TE)[0]


@dataclass(frozen=True, kw_only=True)
class Eagle3Draft(EagleDraft):
    """See Draft in model/draft.py. `target_ids_N` is None where draft and target have one vocabulary."""

    hidden_norm_E: Tensor
    norm_E: Tensor
    target_ids_N: Tensor | None

    def fuse(self, features_TF: Tensor) -> Tensor:
        """Hidden states (T, E) from three features of the target, side by side."""
        return self.fc(features_TF)

    def _parts(self, index: int) -> DraftParts | None:
        if not isinstance(self.head, CpuLinear):
            return None
        return DraftParts(
            self.embedding_VE,
            None,
            self.head,
            token_norm_E=self.layers[index].input_norm_E,
            hidden_norm_E=self.hidden_norm_E,
            head_norm_E=self.norm_E,
            target_ids_N=self.target_ids_N,
        )

    def _run(self, index: int, through: LayerPass, embedded_TE: Tensor, hidden_TE: Tensor) -> Tensor:
        norm, layer = self.passes.rms_norm, self.layers[index]
        assert layer.input_norm_E is not None
        both = (norm(embedded_TE, layer.input_norm_E), norm(hidden_TE, self.hidden_norm_E))
        return through.run(self.first_layer + index, layer, hidden_TE, torch.cat(both, dim=-1))[0]

    def logits(self, hidden_LE: Tensor) -> Tensor:
        """Logits (L, V) float32; -inf at tokens that the draft's vocabulary does not have."""
        logits_LN = self.head(self.passes.rms_norm(hidden_LE, self.norm_E)).float()
        if self.target_ids_N is None:
            return logits_LN
        logits_LV = logits_LN.new_full((logits_LN.shape[0], self.config.layer.vocab_size), float("-inf"))
        return logits_LV.index_copy_(1, self.target_ids_N, logits_LN)


def load_eagle(
    checkpoint: Checkpoint,
    config: DraftConfig,
    target: Decoder,
    passes: Passes,
    attention: AttentionBackend,
    *,
    pack: Pack | None = None,
) -> EagleDraft:
    """Loads the draft of `target`, in its dtype and on its device.

    It has the target's embedding and head unless the checkpoint has its own. CheckpointError if a tensor does not fit
    or is none that such a draft has: a layout that is misread would only show in how much is accepted.
    """
    is_eagle3 = config.algorithm == "eagle3"
    _refuse_other_algorithm(checkpoint, config.algorithm)
    layer, like = config.layer, target.embedding_VE
    weights = Weights(checkpoint, layer, like.dtype, like.device, pack)
    size, num_fused = layer.hidden_size, len(config.feature_layers) if is_eagle3 else 2
    prefix = "midlayer" if any(name.startswith("midlayer.") for name in checkpoint) else "layers.0"
    has_embedding = "embed_tokens.weight" in checkpoint
    num_inputs = 2 * size if is_eagle3 else size
    shares_head = "lm_head.weight" not in checkpoint and config.draft_vocab_size == layer.vocab_size

    draft = EagleDraft(
        config=config,
        first_layer=target.config.num_layers,
        passes=passes,
        attention=attention,
        rope=Rope.of(layer.rope, layer.head_dim, like.device),
        embedding_VE=weights.tensor("embed_tokens.weight", layer.vocab_size, size) if has_embedding else like,
        fc=weights.finished(weights.linear("fc", size, num_fused * size, bias="fc.bias" in checkpoint)),
        layers=(weights.layer(prefix, layer.layers[0], num_inputs=num_inputs, may_lack_norm=not is_eagle3),),
        head=target.head if shares_head else weights.head(config.draft_vocab_size),
    )
    if is_eagle3:
        draft = Eagle3Draft(
            **vars(draft),
            hidden_norm_E=weights.tensor(f"{prefix}.hidden_norm.weight", size),
            norm_E=weights.tensor("norm.weight", size),
            target_ids_N=_target_ids(checkpoint, config, like.device),
        )
    _refuse_unknown(checkpoint, config.algorithm)
    return draft.in_one_call()


def _refuse_other_algorithm(checkpoint: Checkpoint, algorithm: str) -> None:
    other = "eagle3" if any(name.endswith("hidden_norm.weight") for name in checkpoint) else "eagle"
    if other != algorithm:
        raise CheckpointError(
            f"{checkpoint.folder}: --speculative-algorithm: got {algorithm}, but the tensors are those of {other}"
        )


def _refuse_unknown(checkpoint: Checkpoint, algorithm: str) -> None:
    unknown = sorted(name for name in set(checkpoint) - checkpoint.taken.keys() if not name.endswith(_UNREAD))
    if unknown:
        raise CheckpointError(
            f"{checkpoint.folder}: got tensor {brief_name(unknown[0])}, expected none but those that a draft of"
            f" {algorithm} with this config.json has"
        )


def _target_ids(checkpoint: Checkpoint, config: DraftConfig, device: torch.device) -> Tensor | None:
    """The target's id of each of the draft's ids, from `d2t`, which holds their differences."""
    num_ids, vocab_size = config.draft_vocab_size, config.layer.vocab_size
    if "d2t" not in checkpoint and num_ids == vocab_size:
        return None
    offsets_N = checkpoint.take_integers("d2t", (num_ids,))
    ids_N = offsets_N + torch.arange(num_ids)
    wrong_N = (ids_N < 0) | (ids_N >= vocab_size)  # a sum that wraps is negative
    if wrong_N.any():
        first = int(wrong_N.nonzero()[0])
        raise CheckpointError(
            f"{checkpoint.folder}: d2t: draft id {first} has offset {int(offsets_N[first])}, so it stands for token"
            f" {int(ids_N[first])}, expected 0 to {vocab_size - 1}"
        )
    if (num_distinct := ids_N.unique().numel()) < num_ids:
        raise CheckpointError(
            f"{checkpoint.folder}: d2t: {num_ids} draft ids stand for {num_distinct} tokens, expected one for each"
        )
    return ids_N.to(device)
