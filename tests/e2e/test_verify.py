"""`baton verify` on the bundled model over a pair: clean as it is, and a proxy that damages streams is found."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.http_exchange import Server
from loadtest.verify.command import verify
from loadtest.verify.findings import Exit
from loadtest.verify.flags import verify_parser
from tests.e2e.baton_process import PROJECT, BatonProcess
from tests.loadtest.verify.hash_server import LyingProxy, lying, repeated

pytestmark = pytest.mark.slow


async def test_a_pair_is_clean_and_a_proxy_that_repeats_a_chunk_is_found(story: BatonProcess, tmp_path: Path) -> None:
    model = PROJECT / "models" / "story"
    more = ["--requests", "90", "--rate", "200", "--vocab-size", "1000", "--hung-after", "60", "--out", str(tmp_path)]

    typed = [story.url, *more, "--model", str(model), "--cancels"]
    status = await verify(verify_parser().parse_args(typed), typed, Console(file=io.StringIO()))
    report = json.loads((tmp_path / "report.json").read_text())
    assert status == Exit.CLEAN, report["verdict"]
    assert {"repeat", "rescore", "folder"} == set(report["calibration"]) and report["verdicts"]["cancels"]["left"] > 0

    server = Server.at(story.url, "")
    async with lying(proxy := LyingProxy(server, lie=repeated)) as liar:
        typed = [f"http://127.0.0.1:{liar.port}", *more]
        status = await verify(verify_parser().parse_args(typed), typed, Console(file=io.StringIO()))
    found = json.loads((tmp_path / "report.json").read_text())["findings"]
    assert proxy.told > 0 and status == Exit.FOUND
    assert len(found) == proxy.told and "stream-differs" in {each["verdict"] for each in found}
