"""What tests ask of a deployment on a cluster, and how they wait for an answer."""

import json
import subprocess
from collections.abc import Callable

import httpx
import pytest

from testkit.reference import Reference
from tests.deploy.ray.head_node import PATIENCE_S, HeadNode


def until(what: Callable[[], object], cluster: HeadNode) -> None:
    """Looks again and again, without hurry; fails when patience is over."""
    pause = subprocess.Popen(["sleep", str(PATIENCE_S)])
    try:
        while not what():
            assert cluster.process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                pause.wait(0.1)
    finally:
        pause.kill()
        pause.wait()


def ready(url: str) -> bool:
    """Whether requests can be served."""
    try:
        return httpx.get(f"{url}/health", timeout=PATIENCE_S).status_code == 200
    except httpx.TransportError:
        return False


def members(url: str, role: str) -> set[int]:
    """The processes of a role that the gateway has admitted; none while it does not answer."""
    try:
        rows = httpx.get(f"{url}/workers", timeout=PATIENCE_S).json()
    except httpx.TransportError:
        return set()
    return {row["pid"] for row in rows if row["role"] == role}


def flags_of(known: Reference, port: int) -> list[str]:
    """For `baton ray config`. A busy machine's heartbeats come late, and lose no worker."""
    fixed = "--dtype float32 --max-total-tokens 4096 --silence-limit 60"
    return ["--model", str(known.folder), "--port", str(port), *fixed.split()]


def streamed(url: str, prompt: tuple[int, ...], count: int) -> list[int]:
    """The tokens of a stream."""
    body = {"prompt": list(prompt), "max_tokens": count, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    tokens: list[int] = []
    with httpx.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}, timeout=PATIENCE_S) as answer:
        assert answer.status_code == 200, answer.read()
        for line in filter(None, answer.iter_lines()):
            if line != "data: [DONE]":
                tokens += json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"]
    return tokens


def check_tokens(url: str, known: Reference) -> None:
    """Every prompt is continued as it should be."""
    for prompt, continuation in zip(known.prompts, known.continuations, strict=True):
        assert streamed(url, prompt, len(continuation)) == list(continuation)
