"""The hooks themselves, without processes."""

import json
import os
from pathlib import Path
from types import ModuleType

import pytest

from model.fake import FakeRunner
from tests.faults.hooked import sitecustomize


def test_a_broken_process_raises_in_every_forward_also_with_a_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sitecustomize, "FOLDER", str(tmp_path))
    module = ModuleType("model.fake")
    vars(module)["FakeRunner"] = type("FakeRunner", (FakeRunner,), {})
    sitecustomize._fake_model(module)

    runner = vars(module)["FakeRunner"]()
    (tmp_path / "broken.json").write_text(json.dumps(os.getpid()))
    for forward in (runner.forward, runner.forward_with_features):
        with pytest.raises(RuntimeError, match="every forward of this process fails"):
            forward()
    assert (tmp_path / "raised").read_text().split() == [str(os.getpid())] * 2
