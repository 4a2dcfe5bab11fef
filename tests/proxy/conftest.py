"""Deployments that the tests of this folder share: one of each kind for each test process."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.proxy.deployment import PATIENT, RUNNER, Proxied

CONTEXT = 4096
Lend = Callable[..., Proxied]


@pytest.fixture(scope="session")
def lend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lend]:
    """Lends a deployment of (prefill, decode, backend, flags), without faults."""
    model = tmp_path_factory.mktemp("model")
    config = {"max_position_embeddings": CONTEXT, "vocab_size": RUNNER.vocab_size}
    (model / "config.json").write_text(json.dumps(config))
    there: dict[tuple[object, ...], Proxied] = {}

    def borrow(prefill: int, decode: int, backend: str, flags: str = PATIENT, worker: str = "") -> Proxied:
        key = (prefill, decode, backend, flags, worker)
        if key not in there:
            more = ("--transfer-backend", backend, *flags.split())
            there[key] = Proxied(tmp_path_factory.mktemp("proxied"), model, prefill, decode, *more, worker=worker)
        there[key].clear()
        return there[key]

    yield borrow
    for lent in there.values():
        lent.close()
