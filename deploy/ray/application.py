"""`app`: builds the Serve application from the `args` of a config file. Ray is imported only when it is called."""

from typing import Any

from deploy.ray.arguments import read_arguments
from protocol.errors import ConfigError


def app(arguments: dict[str, Any]) -> Any:
    """The application: a gateway, and a deployment for each role. Serve calls it with `args` of the file, and shows a
    RuntimeError in `serve status`."""
    from deploy.ray.deployments import build  # noqa: PLC0415  # `baton ray config` works without Ray

    try:
        return build(read_arguments(arguments))
    except ConfigError as error:
        raise RuntimeError(error.message) from None
