"""Checks the options of speculative decoding and finds the draft, before any process starts.

A tree has k tokens at its first level and k * k at each later one: k after each of the k best of the level before. The
model verifies the best W - 1 of them and the last known token. See scheduler/speculation/draft_tree.py.
"""

from pathlib import Path
from typing import Any, Final

from deploy.model_folder import DRAFT_OPTION, bundled_draft, find_draft
from protocol.errors import CheckpointError, ConfigError
from runtime.draft_config import num_mtp_layers
from runtime.layered_config import Config, Origin
from runtime.settings import MAX_DRAFT_STEPS

_ALGORITHM = "speculative-algorithm"
_NUMBERS = (STEPS, TOPK, VERIFIED) = ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")
_ADAPTIVE = "speculative-adaptive"
TREE_SLOTS: Final = 64  # that a tree mask has a bit for; see model/inputs.py


def draft_settings(config: Config, model: Path, context_length: int | None) -> dict[str, Any]:
    """The fields of WorkerSettings that belong to a draft. ConfigError if the options do not fit together."""
    algorithm = config[_ALGORITHM]
    if algorithm is None:
        check_unused(config, DRAFT_OPTION, *_NUMBERS, _ADAPTIVE)
        return {}

    if config[TOPK] > 1:
        _check_trees(config)
    folder = _folder(config, algorithm, model)
    num_steps = _layer_steps(config, model) if algorithm == "mtp" else config[STEPS]
    _check_steps(config, num_steps, context_length)
    settings = {"speculative_draft_model_path": str(folder), "speculative_num_steps": num_steps}
    if config[TOPK] == 1:
        return settings
    return settings | {"speculative_adaptive": False, "speculative_num_draft_tokens": _num_nodes(config)}


def check_unused(config: Config, *names: str) -> None:
    """ConfigError if one of these options is set, although there is no draft that it could change."""
    for name in names:
        if config[_ALGORITHM] is None and config.settings[name].origin is not Origin.DEFAULT:
            got = f"--{name}: got {config.settings[name].text}"
            raise ConfigError(f"{got}, but there is no --{_ALGORITHM}, so nothing is proposed", param=name)


def _layer_steps(config: Config, model: Path) -> int:
    """Proposals by the draft layers of the model. A single layer proposes any number of tokens, one behind the other.
    Several propose one each, and all of them do by default."""
    try:
        num_layers, num_steps = num_mtp_layers(model), int(config[STEPS])
    except CheckpointError as error:
        raise ConfigError(f"--{_ALGORITHM}: {error.message}", param=_ALGORITHM) from None
    if num_layers == 1 or num_steps <= num_layers:
        return num_steps
    if config.settings[STEPS].origin is Origin.DEFAULT:
        return num_layers
    where = f"the draft layers of {model} (num_nextn_predict_layers of its config.json)"
    raise _refused(STEPS, num_steps, f"expected at most {num_layers}, {where}")


def _check_steps(config: Config, num_steps: int, context_length: int | None) -> None:
    topk, verified = (config[name] for name in _NUMBERS[1:])
    if topk == 1 and verified not in (None, num_steps + 1):
        expected = f"{num_steps + 1}, one more than --{STEPS}, which is {num_steps}, unless --{TOPK} is above 1"
        raise _refused(VERIFIED, verified, f"expected {expected}")
    most = MAX_DRAFT_STEPS if context_length is None else max(1, context_length - 2)
    if num_steps > most:
        room = f"at most {most}, for which a context of {context_length} tokens has room"
        raise _refused(STEPS, num_steps, f"expected {room}")


def _check_trees(config: Config) -> None:
    """Whether all else allows trees."""
    topk, num_steps = config[TOPK], config[STEPS]
    if config[_ALGORITHM] == "mtp":
        raise _refused(TOPK, topk, f"expected 1: with --{_ALGORITHM} mtp proposals are chains, not trees")
    if config["attention-backend"] == "varlen":
        raise _refused(TOPK, topk, "expected 1: --attention-backend varlen has no tree mask")
    if config.settings[_ADAPTIVE].origin is not Origin.DEFAULT and config[_ADAPTIVE]:
        raise _refused(_ADAPTIVE, "true", f"expected false: with --{TOPK} {topk} all trees have the same size")
    most = TREE_SLOTS // (num_steps - 1) if num_steps > 1 else TREE_SLOTS - 1
    if topk > most:
        raise _refused(TOPK, topk, f"expected at most {most}, for which a tree of --{STEPS} {num_steps} has room")


def _num_nodes(config: Config) -> int:
    """W. By default as many as the draft has proposed after, and what it proposes last."""
    num_steps, topk, verified = (config[name] for name in _NUMBERS)
    most = min(TREE_SLOTS, 1 + topk + (num_steps - 1) * topk * topk)
    num_nodes = int(verified or min(most, 1 + num_steps * topk))
    if not 1 < num_nodes <= most:
        shape = f"a tree of --{STEPS} {num_steps} and --{TOPK} {topk}"
        raise _refused(VERIFIED, verified, f"expected 2 to {most}, the most that {shape} can have")
    return num_nodes


def _refused(name: str, value: object, reason: str) -> ConfigError:
    return ConfigError(f"--{name}: got {value}, {reason}", param=name)


def _folder(config: Config, algorithm: str, model: Path) -> Path:
    wanted = config[DRAFT_OPTION]
    if algorithm == "mtp" and wanted is not None:
        message = f"--{DRAFT_OPTION}: got {wanted!r}, but --{_ALGORITHM} mtp takes layers of the model's own folder"
        raise ConfigError(message, param=DRAFT_OPTION)
    if algorithm == "mtp":
        return model
    if wanted is not None:
        return find_draft(wanted)
    if config["model"] is None and (bundled := bundled_draft(algorithm)) is not None:
        return bundled
    needed = f"--{DRAFT_OPTION} is missing: --{_ALGORITHM} {algorithm} needs the folder of a draft"
    raise ConfigError(needed + _own_layers(model), param=DRAFT_OPTION)


def _own_layers(model: Path) -> str:
    """That the model has draft layers of its own, if so: SGLang calls them EAGLE, too."""
    try:
        return f"; mtp takes the model's own draft layers (num_nextn_predict_layers is {num_mtp_layers(model)})"
    except CheckpointError:
        return ""
