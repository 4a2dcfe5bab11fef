"""Which model folder is meant, and whether it can be one; its name for clients; its tokenizer, if that is elsewhere.

Of config.json only the longest context is looked at, so that a wish for more is refused before anything starts.
"""

import sysconfig
from collections.abc import Callable
from pathlib import Path

from protocol.brief import brief
from protocol.errors import CheckpointError, ConfigError
from runtime.model_config import read_basics

PROJECT = Path(__file__).resolve().parent.parent
BUNDLED = "story"


def find_model(wanted: str | None) -> Path:
    """The folder that `--model` names, or the bundled model; ConfigError when there is no checkpoint in it."""
    return _bundled() if wanted is None else _found("model", wanted, _why_no_checkpoint)


def is_checkpoint(name: str) -> bool:
    """Whether this is the path of a folder that `--model` would take."""
    try:
        return find_model(name).is_dir()
    except ConfigError:
        return False


def find_tokenizer(wanted: str | None) -> Path | None:
    """The folder that `--tokenizer` names; None for the model's own. ConfigError when no tokenizer is there."""
    return None if wanted is None else _found("tokenizer", wanted, _why_no_tokenizer)


def find_template(wanted: str | None) -> Path | None:
    """The file that `--chat-template` names; None for the tokenizer's own template. ConfigError when it is no file."""
    return None if wanted is None else _found("chat-template", wanted, _why_no_template)


def _found(option: str, wanted: str, why_not: Callable[[Path], str | None]) -> Path:
    """The absolute path of `wanted`. ConfigError when it does not exist, or with the sentence of `why_not`, in which
    the path belongs at `{}`."""
    try:
        path = Path(wanted).expanduser()
        if not path.exists():
            what = "file" if option == "chat-template" else "folder"
            hint = "" if option == "chat-template" else _remote_hint(wanted)
            raise ConfigError(f"--{option}: {what} {brief(wanted)} does not exist{hint}", param=option)
        if why := why_not(path):
            raise ConfigError(f"--{option}: {why.format(brief(wanted))}", param=option)
        return path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:  # no right to look, too long, a home of nobody, a NUL
        if isinstance(error, ConfigError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"--{option}: cannot look into {brief(wanted)}: {reason}", param=option) from error


def _remote_hint(wanted: str) -> str:
    looks_remote = wanted.count("/") == 1 and not wanted.startswith((".", "/", "~"))
    return "; Baton serves local folders, so download a checkpoint from a hub first" if looks_remote else ""


def _why_no_checkpoint(path: Path) -> str | None:
    if not path.is_dir():
        return "{} is a file, expected a folder with config.json and weights"
    return None if (path / "config.json").is_file() else "folder {} has no config.json, so it is no checkpoint"


def _why_no_tokenizer(path: Path) -> str | None:
    if not path.is_dir():
        return "{} is a file, expected a folder with tokenizer.json"
    return None if has_tokenizer(path) else "folder {} has no tokenizer.json"


def _why_no_template(path: Path) -> str | None:
    return None if path.is_file() else "{} is a folder, expected a file with a Jinja template"


def _bundled() -> Path:
    places = [PROJECT / "models" / BUNDLED, Path(sysconfig.get_path("data"), "share", "baton", "models", BUNDLED)]
    for place in places:
        if (place / "config.json").is_file():
            return place
    looked = " and ".join(str(place) for place in places)
    raise ConfigError(f"the bundled model is missing (looked in {looked}); name a folder with --model", param="model")


def model_name(folder: Path) -> str:
    """What clients call the model: the folder's name, or `owner/name` for a snapshot in a hub cache."""
    cache = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cache.startswith("models--"):
        return cache.removeprefix("models--").replace("--", "/", 1)
    return folder.name or "model"


def has_tokenizer(folder: Path) -> bool:
    """Whether text can be sent; without one, only token ids."""
    return (folder / "tokenizer.json").is_file()


def check_context_length(folder: Path, wanted: int | None) -> None:
    """ConfigError when `wanted` tokens are more than config.json allows, or fewer than a prompt and an answer need. A
    file that cannot be read so is left to those who load the model."""
    longest = _longest_context(folder)
    if wanted is not None and longest is not None and not 2 <= wanted <= longest:
        raise ConfigError(
            f"--context-length: got {wanted}, expected 2 to {longest}, the model's max_position_embeddings",
            param="context-length",
        )


def check_capacity(folder: Path, context_length: int | None, max_total_tokens: int | None) -> str | None:
    """What a person should know when `max_total_tokens` of KV are less than the model's context. ConfigError when they
    are less than a `context_length` that was asked for."""
    longest = _longest_context(folder) if context_length is None else context_length
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


def _longest_context(folder: Path) -> int | None:
    try:
        return read_basics(folder).context_length
    except CheckpointError:
        return None
