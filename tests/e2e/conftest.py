"""Servers that several tests share: started on first use in each test process, ended when it ends."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.baton_process import FAKE, BatonProcess

FAKE_CONTEXT = 4096


@pytest.fixture(scope="session")
def fake_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the gateway needs to know of the model of hashes."""
    folder = tmp_path_factory.mktemp("fake")
    config = {"max_position_embeddings": FAKE_CONTEXT, "vocab_size": 997, "num_nextn_predict_layers": 3}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatonProcess]:
    """The bundled model on a pair."""
    log = tmp_path_factory.mktemp("story") / "log"
    with BatonProcess("serve", "--port", "0", "--max-total-tokens", "8192", "--dtype", "float32", log=log) as baton:
        yield baton


@pytest.fixture(scope="session")
def fake(fake_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatonProcess]:
    """The model of hashes on two pairs, with tight pools: requests queue for pages and rows."""
    flags = "--port 0 --prefill 2 --decode 2 --page-size 4 --max-total-tokens 1200 --max-running-requests 12"
    log = tmp_path_factory.mktemp("fake") / "log"
    argv = [str(fake_folder), *flags.split(), "--chunked-prefill-size", "48"]
    with BatonProcess(*argv, log=log, program=FAKE) as baton:
        yield baton
