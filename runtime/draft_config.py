"""Reads the configuration of a draft: config.json of an EAGLE or EAGLE-3 folder, or the target's for its MTP layers.

Published folders differ in small things: an architecture may be named like its target's or with Eagle in it, and the
target's layers that feed the draft are numbered by their inputs (eagle_aux_hidden_state_layer_ids) or by their outputs
(the same name inside eagle_config).
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from protocol.errors import CheckpointError
from runtime.families import find_family, text_fields
from runtime.files import JsonFields, read_fields
from runtime.model_config import ModelConfig, config_facts, read_config
from runtime.model_parts import MtpNames

LAYER_IDS: Final = "eagle_aux_hidden_state_layer_ids"
NUM_FUSED: Final = 3  # features of the target that EAGLE-3 fuses
_FAMILIES: Final = tuple(f"{name}ForCausalLM" for name in ("Llama", "Mistral", "Qwen2", "MiMo", "Qwen3"))
_UNSUPPORTED: Final = ("add_para_norm", "norm_before_residual", "norm_before_fc", "norm_output", "parallel_drafting")


@dataclass(frozen=True)
class DraftConfig:
    """One draft. `layer` has the number and sizes of its layers; its context length is the target's."""

    algorithm: str  # eagle | eagle3 | mtp
    layer: ModelConfig
    draft_vocab_size: int  # of its own head
    feature_layers: tuple[int, ...] = ()  # the target's layers whose inputs it fuses; empty: the final norm's output
    mtp: MtpNames | None = None  # of layers in the target's own folder

    @property
    def facts(self) -> dict[str, str]:
        """Every field as text by name, those of the layer as in config_facts."""
        own: dict[str, Any] = {"algorithm": self.algorithm, "draft_vocab_size": self.draft_vocab_size}
        own |= {"feature_layers": list(self.feature_layers)}
        return config_facts(self.layer) | {name: json.dumps(value) for name, value in own.items()}


def load_mtp_config(folder: Path, target: ModelConfig) -> DraftConfig:
    """The draft layers that the target's own config.json in `folder` names. Each has the parts of the target's last
    layer. CheckpointError if there are none, or they are not read."""
    names = find_family(text_fields(read_fields(folder / "config.json"))).mtp
    if names is None:
        raise CheckpointError(
            f"{folder}: --speculative-algorithm: got mtp, but draft layers of {target.architecture} are not supported;"
            " eagle and eagle3 take a draft from a folder of its own"
        )
    num_layers = num_mtp_layers(folder)
    if names.head is not None and num_layers > 1:
        raise CheckpointError(
            f"{folder}: num_nextn_predict_layers of config.json is {num_layers}, expected 1: several draft layers of"
            f" {target.architecture}, with a head each, are not supported"
        )
    layers = target.layers[-1:] * num_layers
    return DraftConfig("mtp", replace(target, layers=layers), target.vocab_size, mtp=names)


def num_mtp_layers(folder: Path) -> int:
    """The draft layers that the config.json of a model names. CheckpointError if there are none."""
    num_layers = read_fields(folder / "config.json").integer("num_nextn_predict_layers", 0, minimum=0)
    if num_layers == 0:
        raise CheckpointError(
            f"{folder}: this model has no draft layers (num_nextn_predict_layers of config.json), which"
            " --speculative-algorithm mtp needs; eagle and eagle3 take a draft from a folder of its own"
        )
    return num_layers


def load_draft_config(folder: Path, algorithm: str, target: ModelConfig) -> DraftConfig:
    """Reads the config.json of the draft in `folder`. CheckpointError if it is not one for this target."""
    path = folder / "config.json"
    config = JsonFields(read_fields(path).values, str(path))  # its target has a config.json, too
    architectures = config.text_list("architectures")
    for name in architectures:  # published ones may also be named like their target's
        named = "eagle3" if "Eagle3" in name else "eagle" if "Eagle" in name else algorithm
        if named != algorithm:
            raise config.refuse("architectures", f"one of {algorithm}; this one takes --speculative-algorithm {named}")
    for name in _UNSUPPORTED:
        if config.boolean(name, False):
            raise config.refuse(name, "false (such drafts are not supported)")
    if config.positive_number("logit_scale", 1.0) != 1.0:
        raise config.refuse("logit_scale", "1 (scaled logits are not supported)")

    plain_names = [name.replace("Eagle3", "").replace("Eagle", "") for name in architectures]
    if not set(plain_names) <= set(_FAMILIES):
        raise config.refuse("architectures", f"one of {', '.join(_FAMILIES)}, also with Eagle or Eagle3 in the name")
    fields = JsonFields(config.values | {"architectures": plain_names}, config.where)
    layer = read_config(fields, find_family(fields), target.context_length, ())
    if layer.num_layers != 1:
        raise config.refuse("num_hidden_layers", "1, as EAGLE and EAGLE-3 have")
    mixer = replace(layer.attention, qkv_bias=config.boolean("qkv_bias", layer.attention.qkv_bias))
    layer = replace(layer, layers=(replace(layer.layers[0], mixer=mixer),))
    target_hidden_size = config.integer("target_hidden_size", layer.hidden_size)
    for name, own, targets in (
        ("hidden_size", layer.hidden_size, target.hidden_size),
        ("target_hidden_size", target_hidden_size, target.hidden_size),
        ("vocab_size", layer.vocab_size, target.vocab_size),
    ):
        if own != targets:
            raise CheckpointError(f"{folder}: {name} of the draft is {own}, but its target has {targets}", param=name)

    draft_vocab_size = config.integer("draft_vocab_size", layer.vocab_size)
    least, hint = (1, "") if algorithm == "eagle3" else (layer.vocab_size, "; eagle3 may have fewer")
    if not least <= draft_vocab_size <= layer.vocab_size:
        raise config.refuse("draft_vocab_size", f"{least} to {layer.vocab_size}, the target's vocab_size{hint}")
    feature_layers = _feature_layers(config, target.num_layers) if algorithm == "eagle3" else ()
    return DraftConfig(algorithm, layer, draft_vocab_size, feature_layers)


def _feature_layers(config: JsonFields, num_layers: int) -> tuple[int, ...]:
    """The three layers of the target whose inputs are fused, ascending."""
    nested = config.nested("eagle_config")
    if not nested.boolean("use_aux_hidden_state", True):
        raise nested.refuse("use_aux_hidden_state", "true, as EAGLE-3 has it")
    is_nested = bool(nested.values.get(LAYER_IDS)) and not config.values.get(LAYER_IDS)  # an empty list is none
    holder, shift = (nested, 1) if is_nested else (config, 0)
    numbers = holder.values.get(LAYER_IDS) or [2, num_layers // 2, num_layers - 3]

    are_integers = isinstance(numbers, list) and all(type(entry) is int for entry in numbers)
    layers = tuple(number + shift for number in numbers) if are_integers else ()
    is_ascending = len(layers) == NUM_FUSED and layers[0] < layers[1] < layers[2]
    if not is_ascending or layers[0] < 0 or layers[-1] >= num_layers:
        what = f"{NUM_FUSED} ascending integers from {-shift} to {num_layers - 1 - shift}"
        raise holder.refuse(LAYER_IDS, f"{what}: layers of the target, which has {num_layers}")
    return layers
