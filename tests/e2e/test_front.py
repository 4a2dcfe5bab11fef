"""Keys and names of a gateway as a user starts it: with flags, and a folder that is typed as it lies."""

import os
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.baton_process import PATIENCE_S, PROJECT, BatonProcess

pytestmark = pytest.mark.slow
SECRET = "sk-of-this-test-alone"


def test_keys_stand_in_no_command_line_and_the_typed_folder_is_a_name(tmp_path: Path) -> None:
    keys = tmp_path / "api keys"
    keys.write_text(f"# one\n{SECRET}\n")
    keys.chmod(0o600)
    typed = os.path.relpath(PROJECT / "models" / "story")
    flags = ["--port", "0", "--api-key-file", str(keys), "--model", typed, "--served-model-name", "tale", "fable"]
    with BatonProcess("serve", *flags, log=tmp_path / "log") as baton:
        for process in [psutil.Process(baton.process.pid), *baton.children()]:
            assert SECRET not in " ".join(process.cmdline()) + str(process.environ())
        assert baton.http.get("/health").status_code == 200
        assert baton.http.get("/workers").status_code == 401
        with httpx.Client(
            base_url=baton.url, headers={"authorization": f"Bearer {SECRET}"}, timeout=PATIENCE_S
        ) as client:
            assert [each["id"] for each in client.get("/v1/models").json()["data"]] == ["tale", "fable"]
            for name in ("tale", "fable", typed):
                body = {"model": name, "prompt": [1, 2, 3], "max_tokens": 2}
                assert client.post("/v1/completions", json=body).json()["model"] == "tale", name
