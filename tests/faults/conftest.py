"""Deployments that fault tests share: one at a time, and a fresh one when the last has been through enough."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.deployment import CONTEXT, RUNNER, Deployment

MAX_HITS = 4  # of the processes of one role: waits before the next start grow


class Lender:
    """Lends a whole deployment. One that is not given back has failed its borrower: the next gets a fresh one."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder, self._model = folder, model
        self._numbers = itertools.count()
        self._present: Deployment | None = None
        self._is_lent = False

    def borrow(self, victim: str, topology: str = "2P2D") -> Deployment:
        """For a test that will hit one process of the role `victim`; "" if none."""
        if (present := self._present) is not None:
            if self._is_lent:
                self._present = None
                present.abandon()
            elif present.num_hits.get(victim, 0) >= MAX_HITS or present.topology != topology or not present.is_running:
                self.close()
        if self._present is None:
            folder = self._folder / str(next(self._numbers))
            folder.mkdir()
            self._present = Deployment(folder, self._model, topology)
        self._is_lent = True
        self._present.baton.http.post("/flush_cache").raise_for_status()  # the phases of a transfer need one
        return self._present

    def give_back(self) -> None:
        """It is as good as new, or has ended as it should."""
        self._is_lent = False

    def close(self) -> None:
        """Ends what is there."""
        present, self._present = self._present, None
        if present is not None:
            if self._is_lent:
                present.abandon()
            else:
                present.close()


@pytest.fixture(scope="session")
def lender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lender]:
    """Shared by the tests of one test process."""
    folder, model = tmp_path_factory.mktemp("faults"), tmp_path_factory.mktemp("model")
    config = {"max_position_embeddings": CONTEXT, "vocab_size": RUNNER.vocab_size}
    (model / "config.json").write_text(json.dumps(config))
    lender = Lender(folder, model)
    yield lender
    lender.close()
