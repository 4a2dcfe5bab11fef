"""The lines printed when Baton is ready, with a command to paste. Pure."""

import json
import shlex
from collections.abc import Sequence

PROMPT = "Once upon a time"
TOKEN_IDS = {"prompt": [1, 2, 3], "return_token_ids": True}  # a request to a model without a tokenizer


def serve_lines(
    http: str,
    served_model_name: str,
    workers: Sequence[str],
    seconds: float,
    *,
    with_text: bool,
    api_key_file: str | None = None,
) -> list[str]:
    """The ready line of `baton serve` and a curl command. `workers` are the workers' roles."""
    url = local_url(http)
    body: dict[str, object] = {"model": served_model_name, "prompt": PROMPT, "max_tokens": 64, "stream": True}
    if not with_text:
        body |= TOKEN_IDS
    return [
        f"Ready: {served_model_name} at {url} with {count_roles(workers)}, in {seconds:.1f} s. Ctrl-C ends it. Try:",
        curl(url, body, api_key_file),
    ]


def gateway_lines(http: str, control: str, model: str | None, trust: str = "") -> list[str]:
    """The ready line of `baton gateway` and the commands that join workers. `model` is None for the bundled model;
    `trust` is --keys or --trust-network, or empty."""
    served = ("" if model is None else f" --model {shlex.quote(model)}") + (f" {trust}" if trust else "")
    return [
        f"Ready: gateway at {local_url(http)}, workers dial {control}. Ctrl-C ends it. Join workers with these"
        " commands; where two share a host, add --workers-on-host 2 to each:",
        f"baton worker --role prefill --gateway {dialable(control)}{served}",
        f"baton worker --role decode --gateway {dialable(control)}{served}",
    ]


def worker_lines(worker_id: str, endpoint: str) -> list[str]:
    """The ready line of `baton worker`."""
    return [f"Ready: {worker_id} serves for the gateway at {endpoint}. Ctrl-C ends it."]


def count_roles(workers: Sequence[str]) -> str:
    """`2 prefill workers + 1 decode worker`."""
    counts = {role: workers.count(role) for role in dict.fromkeys(workers)}
    return " + ".join(f"{count} {role} worker{'' if count == 1 else 's'}" for role, count in counts.items())


def curl(url: str, body: dict[str, object], api_key_file: str | None = None) -> str:
    """A shell command that posts `body` to /v1/completions, with the first key of `api_key_file`, if given."""
    written = shlex.quote(json.dumps(body, ensure_ascii=False))
    key = ""
    if api_key_file is not None:  # the command reads the key from the file, so that no terminal shows it
        key = f""" -H "Authorization: Bearer $(awk '$1 ~ /^[^#]/ {{print $1; exit}}' {shlex.quote(api_key_file)})\""""
    return f"curl -N -s {url}/v1/completions -H 'Content-Type: application/json'{key} -d {written}"


def local_url(http: str) -> str:
    """`http`, with a loopback address in place of a wildcard."""
    return http.replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:")


def dialable(control: str) -> str:
    """`control`, with the placeholder THIS_HOST in place of a wildcard."""
    return control.replace("://0.0.0.0:", "://THIS_HOST:").replace("://[::]:", "://THIS_HOST:")
