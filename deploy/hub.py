"""A model by its name at a hub, `org/name`: huggingface_hub downloads it into its cache.

Only files that Baton reads are downloaded, and the package shows how far it is. HF_ENDPOINT, HF_TOKEN, HF_HOME and
HF_HUB_OFFLINE mean what they mean elsewhere. A hub that says nothing for HF_HUB_ETAG_TIMEOUT seconds is not there: the
package alone would wait for it without a bound.

Without the hub the package may return a folder that a download left half-filled. Such a folder is refused if it lacks
config.json, or a file of weights: each that model.safetensors.index.json names, or model.safetensors. Of a tokenizer
it is tokenizer.json. If the package kept no list of the hub's files, a download that has begun in this cache must have
ended, too.
"""

import re
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

from protocol.errors import CheckpointError, ConfigError, brief, brief_name
from runtime.files import read_fields

NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Weights that are there twice have names of their own, or lie in folders.
READ: Final = ("*.json", "*.safetensors", "*.jinja")
READ_OF_TOKENIZER: Final = ("*.json", "*.jinja")
NOT_READ: Final = ("*/*.json", "*/*.safetensors", "consolidated*.safetensors")
MAX_REASON: Final = 200  # characters
MAX_LACKING: Final = 3  # files that a sentence names
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
TOKENIZER: Final = "tokenizer.json"
BEGUN: Final = ".incomplete"  # ends the names of files whose download has not ended
URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(\S*)")
HOST: Final = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d+)?")
QUERY: Final = re.compile(r"\?[^\s?]*=\S*")
MISSING: Final = re.compile(r"file\(s\) are missing \((.+?)\)\. ")  # as the package words it


def is_hub_name(wanted: str) -> bool:
    """Whether this is the name of a model at a hub. A folder of the same name wins: the caller looks for it first."""
    return NAME.fullmatch(wanted) is not None


def download(option: str, name: str, revision: str | None = None) -> Path:
    """The folder, in the hub's cache, of a model that this option names. What is not there is downloaded, if the hub
    can be reached. ConfigError says what to do if it cannot. Of `tokenizer` no weights are downloaded."""
    try:
        from huggingface_hub import constants, snapshot_download  # noqa: PLC0415  # takes half a second
    except ValueError as error:  # it reads HF_ENDPOINT and others as it is imported
        reason = without_secrets(str(error).partition("\n")[0])[:MAX_REASON]
        what = f"huggingface_hub refuses an environment variable that begins with HF_: {reason}"
        raise ConfigError(f"--{option}: {what}", param=option) from error
    from huggingface_hub.errors import (  # type: ignore[attr-defined]  # noqa: PLC0415  # HTTPError: of its HTTP client
        GatedRepoError,
        HTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub, shown = shown_hub(constants.ENDPOINT), brief(name)
    if "..." in hub:
        raise ConfigError(f"--{option}: HF_ENDPOINT is no address of a hub: expected http://HOST:PORT", param=option)
    wanted = [*(READ_OF_TOKENIZER if option == "tokenizer" else READ)]
    try:
        answer = _ask(name, revision)
        folder = Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=wanted,
                ignore_patterns=[*NOT_READ],
                local_files_only=not answer.is_there,
            )
        )
    except GatedRepoError as error:
        what = f"{shown} needs its terms accepted at {hub}, and the token of who has accepted them in HF_TOKEN"
        raise ConfigError(f"--{option}: {what}", param=option) from error
    except RepositoryNotFoundError as error:
        what = f"{shown} is neither a folder here nor a model at {hub}; a private one needs a token in HF_TOKEN"
        raise ConfigError(f"--{option}: {what}", param=option) from error
    except RevisionNotFoundError as error:
        if revision is None:
            raise ConfigError(f"--{option}: {shown} has no branch main at {hub}", param=option) from error
        raise ConfigError(
            f"--revision: got {revision!r}, which {shown} does not have at {hub}", param="revision"
        ) from error
    except LocalEntryNotFoundError as error:
        missing = MISSING.search(str(error))
        raise _not_whole(option, name, brief_name(missing[1]) if missing else "", answer.status) from error
    except (OSError, ValueError, RuntimeError, HTTPError) as error:  # of the disk, the name, the connection
        text = str(error).replace(constants.ENDPOINT, hub)
        reason = without_secrets(text.partition("\n")[0])[:MAX_REASON]
        raise ConfigError(f"--{option}: cannot download {shown} from {hub}: {reason}", param=option) from error

    lacking = lacking_files(folder, of_tokenizer=option == "tokenizer")
    if lacking and (answer.files is None or answer.files & set(lacking)):
        raise _not_whole(option, name, ", ".join(map(brief_name, lacking[:MAX_LACKING])), answer.status)
    return folder


def lacking_files(folder: Path, *, of_tokenizer: bool = False) -> list[str]:
    """The names of files without which this folder of the cache is not taken, unless the hub lacks them, too."""
    names = [TOKENIZER] if of_tokenizer else ["config.json", INDEX if (folder / INDEX).is_file() else WEIGHTS]
    if names[-1] == INDEX:
        try:
            shards = read_fields(folder / INDEX).nested("weight_map").values.values()
        except CheckpointError:
            return []  # whoever reads the weights says what is wrong with it
        names += sorted({shard for shard in shards if isinstance(shard, str)})
    lacking = [name for name in names if not (folder / name).is_file()]

    cache = folder.parent.parent
    if lacking or (cache / "trees" / f"{folder.name}.json").is_file():  # the package has compared it with this list
        return lacking
    begun = sorted((cache / "blobs").glob(f"*{BEGUN}"))
    return [f"blobs/{path.name}" for path in begun if not path.with_name(path.name.partition(".")[0]).exists()]


def shown_hub(endpoint: str) -> str:
    """The address of a hub for a sentence."""
    return without_secrets(endpoint) if URL.fullmatch(endpoint) else "the hub of HF_ENDPOINT"


def without_secrets(text: str) -> str:
    """A text whose URLs have scheme, host and port alone: names, passwords, signatures and paths are cut."""
    return QUERY.sub("", URL.sub(_shown_url, text))


def _shown_url(url: re.Match[str]) -> str:
    authority, *rest = re.split(r"[/?#]", url[2], maxsplit=1)
    host = HOST.match(authority.rpartition("@")[2])
    is_clear = host is not None and "@" not in "".join(rest)  # else a password may hold a slash
    return f"{url[1]}://{host[0] if host is not None and is_clear else '...'}"


class _Answer(NamedTuple):
    """What a hub says of a model. `files`: their names; None: it does not tell."""

    is_there: bool  # the hub, not the model
    files: frozenset[str] | None = None
    status: int = HTTPStatus.OK


def _ask(name: str, revision: str | None) -> _Answer:
    """Asks the hub once. The package tries for a minute and more, or waits for ever, so it is told if no hub is there.
    ValueError if the name is none."""
    from huggingface_hub import HfApi, constants  # noqa: PLC0415  # takes half a second
    from huggingface_hub.errors import (  # type: ignore[attr-defined]  # noqa: PLC0415
        HfHubHTTPError,
        HTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    revision = revision or constants.DEFAULT_REVISION
    try:
        told = HfApi().model_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (RepositoryNotFoundError, RevisionNotFoundError):  # terms to accept are of the first kind
        return _Answer(is_there=True)  # what it refuses, the package says
    except HfHubHTTPError as error:  # too many requests, a failure: a cached model will do
        return _Answer(is_there=False, status=error.response.status_code)
    except (OSError, HTTPError):
        return _Answer(is_there=False)
    files = None if told.siblings is None else frozenset(file.rfilename for file in told.siblings)
    return _Answer(is_there=True, files=files)


def _words(status: int) -> str:
    """429: `429 Too Many Requests`."""
    known = {each.value: each.phrase for each in HTTPStatus}
    return f"{status} {known.get(status, '')}".rstrip()


def _not_whole(option: str, name: str, lacking: str, status: int) -> ConfigError:
    """The cache lacks these files, or does not have the model at all, and no hub gives them. `status`: what it said."""
    from huggingface_hub import constants  # noqa: PLC0415  # takes half a second

    hub = shown_hub(constants.ENDPOINT)
    silent = "cannot be reached" if status == HTTPStatus.OK else f"answers {_words(status)}"
    asked = "HF_HUB_OFFLINE forbids to ask a hub" if constants.HF_HUB_OFFLINE else f"{hub} {silent}"
    lacks = f" (it lacks {lacking})" if lacking else ""
    what = f"{brief(name)} is no folder here and not whole in the hub's cache{lacks}"
    todo = f"download it elsewhere, and name its folder with --{option}"
    return ConfigError(f"--{option}: {what}, and {asked}; {todo}", param=option)
