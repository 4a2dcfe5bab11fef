"""`baton ray config`, `plan`, `manifest` and `status`. Returns an exit status."""

from collections.abc import Sequence
from importlib.util import find_spec

from deploy.model_folder import find_model, is_at_hub
from deploy.ray.config_file import read_cluster_file, read_yaml
from deploy.ray.config_text import APPLICATION, config_text
from deploy.ray.manifest import Wanted, manifest_text
from deploy.ray.placement import plan_lines
from deploy.ray.status_table import status_lines
from protocol.errors import ConfigError
from runtime.installation import baton_version
from runtime.layered_config import Config

RAY_USAGE = "baton ray config [flags of baton serve] | plan FILE | manifest FILE PODS [cluster] | status [APPLICATION]"
WORDS = {"config": (0, 0), "plan": (1, 1), "manifest": (2, 3), "status": (0, 1)}  # verb: fewest and most words after it


def ray_command(words: Sequence[str], config: Config) -> int:
    """Runs `baton ray WORDS`. `config` has the options of `baton serve`, for `config`. Raises ConfigError."""
    verb, rest = (words[0], list(words[1:])) if words else ("", [])
    if verb not in WORDS:
        got = f"got {verb[:80]!r}, expected" if words else "expected"
        raise ConfigError(f"ray: {got} one of {', '.join(WORDS)}; {RAY_USAGE}")
    if verb == "config":
        print(config_text(config), end="")
        return 0
    fewest, most = WORDS[verb]
    if not fewest <= len(rest) <= most:
        raise ConfigError(f"ray {verb}: expected {RAY_USAGE}")

    if find_spec("ray") is None or find_spec("grpc") is None:
        raise ConfigError("ray: the package ray[serve] is missing; expected `pip install 'baton-llm[ray]'`")
    if verb == "manifest":
        return _manifest(*rest)
    return _plan(rest[0]) if verb == "plan" else _status(rest[0] if rest else APPLICATION)


def _plan(path: str) -> int:
    from deploy.ray import cluster  # noqa: PLC0415  # imports Ray

    file = read_cluster_file(path, cluster.KNOWN)
    with cluster.connected():
        lines, lacks = plan_lines(file, cluster.find_nodes(file.application), runs=cluster.runs(file.application))
    try:
        if file.arguments.model is None or not is_at_hub(file.arguments.model):  # each node downloads it
            find_model(file.arguments.model, file.arguments.revision)
    except ConfigError as error:
        lines.append(f"{error.message.replace('--model:', 'args.model, here:', 1)}. Every node needs it.")
    print("\n".join([*lines, *(f"Missing: {sentence}." for sentence in lacks)]))
    return 1 if lacks else 0


def _manifest(path: str, pods: str, kind: str = "service") -> int:
    if not pods.isdecimal():
        raise ConfigError(f"ray manifest: got {pods[:80]!r} pods, expected a number")
    from deploy.ray import cluster  # noqa: PLC0415  # imports Ray

    file = read_cluster_file(path, cluster.KNOWN)
    wanted = Wanted(kind, int(pods), f"baton:{baton_version()}", cluster.VERSION)
    print(manifest_text(file, read_yaml(path), wanted), end="")
    return 0


def _status(application: str) -> int:
    from deploy.ray import cluster  # noqa: PLC0415  # imports Ray

    with cluster.connected():
        lines = status_lines(cluster.look(application))
    print("\n".join(lines))
    return 0
