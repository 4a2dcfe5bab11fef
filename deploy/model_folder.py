"""Finds and checks the folders of model and tokenizer and the chat template, before any process starts.

Of config.json it reads only the longest context and the width of the MLP.
"""

import sysconfig
from dataclasses import replace
from pathlib import Path

from deploy.hub import download, is_hub_name
from protocol.errors import CheckpointError, ConfigError, brief
from runtime.layered_config import Config
from runtime.model_config import load_config, read_basics, served_context

PROJECT = Path(__file__).resolve().parent.parent
BUNDLED = "story"
DRAFT_OPTION = "speculative-draft-model-path"
NAMED_AT_HUB = ("tokenizer", DRAFT_OPTION)  # options of folders, beside --model, that take a hub's name
_NEEDED = {  # what the folder of an option must hold, and what such a folder is called
    "model": ("config.json", "a model folder"),
    "tokenizer": ("tokenizer.json", "a tokenizer folder"),
    DRAFT_OPTION: ("config.json", "the folder of a draft"),
}


def find_model(wanted: str | None, revision: str | None = None) -> Path:
    """The folder of `--model`, or the bundled model. The name of a model at a hub is downloaded, in this revision.
    Raises ConfigError if there is no checkpoint."""
    if wanted is not None and is_at_hub(wanted):
        return _found("model", str(download("model", wanted, revision)))
    if revision is not None:
        what = f"got {brief(revision)}, but the model is a folder of this machine; expected it with a hub's name"
        raise ConfigError(f"--revision: {what}", param="revision")
    return _bundled() if wanted is None else _found("model", wanted)


def with_hub_folders(config: Config) -> Config:
    """The same options, with a folder of the hub's cache for a tokenizer and a draft that have the name of a model at a
    hub. They are downloaded. Raises ConfigError if that is not possible."""
    found = dict(config.settings)
    for option in NAMED_AT_HUB:
        setting = config.settings.get(option)
        if setting is None or setting.value is None or not is_at_hub(str(setting.value)):
            continue
        if option != DRAFT_OPTION or config["speculative-algorithm"] not in (None, "mtp"):  # else it is refused
            found[option] = replace(setting, value=str(download(option, str(setting.value))))
    return Config(found)


def is_at_hub(wanted: str) -> bool:
    """Whether an option takes this for the name of a model at a hub: no file or folder has it."""
    return is_hub_name(wanted) and not Path(wanted).exists()


def model_elsewhere(wanted: str | None) -> str | None:
    """`--model` as another terminal can type it: a hub's name as it is, else the absolute path of the folder."""
    return wanted if wanted is None or is_at_hub(wanted) else str(find_model(wanted))


def is_checkpoint(name: str) -> bool:
    """Whether `name` is the folder of a model."""
    try:
        return _found("model", name).is_dir()
    except ConfigError:
        return False


def find_tokenizer(wanted: str | None) -> Path | None:
    """The folder of `--tokenizer`; None for the model's own. Raises ConfigError if it holds no tokenizer."""
    return None if wanted is None else _found("tokenizer", wanted)


def find_draft(wanted: str) -> Path:
    """The folder of `--speculative-draft-model-path`. Raises ConfigError if it holds no draft."""
    return _found(DRAFT_OPTION, wanted)


def find_template(wanted: str | None) -> Path | None:
    """The file of `--chat-template`; None for the tokenizer's own template. Raises ConfigError if it is not a file."""
    return None if wanted is None else _found("chat-template", wanted)


def _found(option: str, wanted: str) -> Path:
    """The absolute path of `wanted`. Raises ConfigError if it is not what the option needs."""
    try:
        path = Path(wanted).expanduser()
        if fault := _why_not(path, option, wanted):
            raise ConfigError(f"--{option}: {fault}", param=option)
        return path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:  # no permission, too long, `~name` of an unknown user, a NUL
        if isinstance(error, ConfigError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"--{option}: cannot look into {brief(wanted)}: {reason}", param=option) from error


def _why_not(path: Path, option: str, wanted: str) -> str | None:
    (needed, kind), shown = _NEEDED.get(option, ("", "")), brief(wanted)
    if not path.exists():
        return f"{'folder' if needed else 'file'} {shown} does not exist"
    if not needed:
        return None if path.is_file() else f"{shown} is a folder, expected a file with a Jinja template"
    if not path.is_dir():
        return f"{shown} is a file, expected a folder with {needed}"
    return None if (path / needed).is_file() else f"folder {shown} has no {needed}, expected {kind}"


def bundled_draft(algorithm: str) -> Path | None:
    """The folder of the bundled model's draft of a kind, if there is one."""
    return next((folder for folder in _places(f"{BUNDLED}-{algorithm}") if (folder / "config.json").is_file()), None)


def _places(name: str) -> list[Path]:
    return [PROJECT / "models" / name, Path(sysconfig.get_path("data"), "share", "baton", "models", name)]


def _bundled() -> Path:
    places = _places(BUNDLED)
    for folder in places:
        if (folder / "config.json").is_file():
            return folder
    looked = " and ".join(str(folder) for folder in places)
    raise ConfigError(f"the bundled model is missing (looked in {looked}); name a folder with --model", param="model")


def model_name(folder: Path) -> str:
    """The model's name for clients: the folder's name, or `owner/name` for a snapshot in a hub cache."""
    cache = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cache.startswith("models--"):
        return cache.removeprefix("models--").replace("--", "/", 1)
    return folder.name or "model"


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder holds tokenizer.json. Without it, requests must send token ids."""
    return (folder / "tokenizer.json").is_file()


def check_context_length(folder: Path, wanted: int | None) -> None:
    """Raises ConfigError if `wanted` is more than config.json allows, or less than 2 tokens. A config.json that cannot
    be read passes: the workers report it."""
    if (longest := longest_context(folder)) is not None:
        served_context(wanted, longest)


def check_capacity(folder: Path, context_length: int | None, max_total_tokens: int | None) -> str | None:
    """A remark if `max_total_tokens` of KV are less than the model's context, else None. Raises ConfigError if they are
    less than `context_length`."""
    longest = longest_context(folder) if context_length is None else context_length
    if max_total_tokens is None or longest is None or max_total_tokens >= longest:
        return None
    if context_length is not None:
        raise ConfigError(
            f"--max-total-tokens: got {max_total_tokens}, expected at least --context-length, {context_length}",
            param="max-total-tokens",
        )
    return (
        f"--max-total-tokens {max_total_tokens} is less than the model's context of {longest} tokens: "
        f"requests may be {max_total_tokens} tokens long, prompt and output together"
    )


def longest_context(folder: Path) -> int | None:
    """The longest context that config.json allows; None if it cannot be read."""
    try:
        return read_basics(folder).context_length
    except CheckpointError:
        return None


def shared_widths(folder: Path) -> dict[str, int]:
    """The widths of the model's MLPs and experts, by the field of config.json that has it; none if it does not tell."""
    try:
        layers = load_config(folder, context_length=2).layers  # shorter than any sliding window
    except (CheckpointError, ConfigError):
        return {}
    return {mlp.field: mlp.width for layer in set(layers) for mlp in layer.feed.shared_out}
