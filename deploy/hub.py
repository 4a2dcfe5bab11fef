"""A model by its name at a hub, `org/name`: huggingface_hub downloads it into its cache.

Only files that Baton reads are downloaded, and the package shows how far it is. HF_ENDPOINT, HF_TOKEN, HF_HOME and
HF_HUB_OFFLINE mean what they mean elsewhere.
"""

import re
from pathlib import Path
from typing import Final

from protocol.errors import ConfigError, brief

NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Weights that are there twice have names of their own, or lie in folders.
READ: Final = ("*.json", "*.safetensors", "*.jinja")
NOT_READ: Final = ("*/*.json", "*/*.safetensors", "consolidated*.safetensors")
MAX_REASON: Final = 200  # characters


def is_hub_name(wanted: str) -> bool:
    """Whether this is the name of a model at a hub. A folder of the same name wins: the caller looks for it first."""
    return NAME.fullmatch(wanted) is not None


def download(name: str, revision: str | None) -> Path:
    """The folder of a model in the hub's cache. What is not there is downloaded, if the hub can be reached. ConfigError
    says what to do if it cannot."""
    from huggingface_hub import constants, snapshot_download  # noqa: PLC0415  # takes half a second
    from huggingface_hub.errors import (  # type: ignore[attr-defined]  # noqa: PLC0415  # HTTPError: of its HTTP client
        GatedRepoError,
        HTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub, shown, elsewhere = constants.ENDPOINT, brief(name), "download it elsewhere, and name its folder with --model"
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*READ], ignore_patterns=[*NOT_READ]))
    except GatedRepoError as error:
        what = f"{shown} needs its terms accepted at {hub}, and the token of who has accepted them in HF_TOKEN"
        raise ConfigError(f"--model: {what}", param="model") from error
    except RepositoryNotFoundError as error:
        what = f"{shown} is neither a folder here nor a model at {hub}; a private one needs a token in HF_TOKEN"
        raise ConfigError(f"--model: {what}", param="model") from error
    except RevisionNotFoundError as error:
        raise ConfigError(
            f"--revision: got {revision!r}, which {shown} does not have at {hub}", param="revision"
        ) from error
    except LocalEntryNotFoundError as error:
        forbidden = "HF_HUB_OFFLINE forbids to ask a hub" if constants.HF_HUB_OFFLINE else f"{hub} cannot be reached"
        what = f"{shown} is no folder here and not whole in the hub's cache, and {forbidden}; {elsewhere}"
        raise ConfigError(f"--model: {what}", param="model") from error
    except (OSError, ValueError, RuntimeError, HTTPError) as error:  # of the disk, the name, the connection
        reason = str(error).partition("\n")[0][:MAX_REASON]
        raise ConfigError(f"--model: cannot download {shown} from {hub}: {reason}", param="model") from error
