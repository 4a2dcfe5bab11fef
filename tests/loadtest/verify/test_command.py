"""`baton verify` on a server of hashes: clean as it is, and every lie of a proxy before it is found as its class."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadtest.__main__ import main
from loadtest.http_exchange import Server
from loadtest.verify.command import verify
from loadtest.verify.findings import Exit
from loadtest.verify.flags import verify_parser
from tests.loadtest.verify import hash_server
from tests.loadtest.verify.hash_server import LyingProxy, hashing, lying

FAST = "--rate 100000 --requests 100 --max-tokens 12 --seed 3"


async def run(server: Server, folder: Path, words: str = "") -> tuple[Exit, dict[str, Any], str]:
    """The exit status, report.json, and what was said."""
    typed = [f"http://127.0.0.1:{server.port}", *FAST.split(), *words.split(), "--out", str(folder)]
    said = io.StringIO()
    status = await verify(verify_parser().parse_args(typed), typed, Console(file=said, width=140))
    return status, json.loads((folder / "report.json").read_text()), said.getvalue()


async def test_a_right_server_is_clean(tmp_path: Path) -> None:
    async with hashing() as server:
        status, report, said = await run(server, tmp_path, "--cancels --churn 1000")
    assert (status, report["exit"], report["findings"]) == (Exit.CLEAN, 0, [])
    assert set(report["verdicts"]) == {
        "quiet", "load", "whole", "cold", "turns", "choices", "lengths", "sampled", "cancels", "churn",
    }  # fmt: skip
    assert report["verdicts"]["cancels"]["left"] > 0 and report["verdicts"]["sampled"] == {"exact": 4}
    assert report["calibration"]["repeat"]["tau"] == report["calibration"]["rescore"]["tau"] == 0.001
    assert "clean: " in said and "clean: " in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "lie, verdict",
    [
        ({"swaps": True, "every": 2}, "foreign"),
        ({"lie": hash_server.repeated}, "stream-differs"),
        ({"lie": hash_server.reordered}, "stream-differs"),
        ({"lie": hash_server.cut}, "truncated"),
        ({"lie": hash_server.miscounted}, "usage"),
        ({"lie": hash_server.damaged}, "wrong"),
        ({"freezes": True, "every": 40}, "hung"),
    ],
)
async def test_a_lie_is_found_as_its_class(lie: dict[str, Any], verdict: str, tmp_path: Path) -> None:
    async with hashing() as server, lying(proxy := LyingProxy(server, **lie)) as liar:
        status, report, said = await run(liar, tmp_path, f"--hung-after {3 if 'freezes' in lie else 30}")
    lies = [finding for finding in report["findings"] if finding["verdict"] == verdict]
    others = [finding for finding in report["findings"] if finding["verdict"] != verdict]
    assert proxy.told > 0 and status == Exit.FOUND and lies
    assert len(report["findings"]) == proxy.told, report["findings"]
    # what a sampled answer should be is not known, and a tail of three tokens does not tell whose it is
    assert {(finding["phase"], finding["verdict"]) for finding in others} <= {("sampled", "wrong"), ("turns", "wrong")}
    assert f"{len(lies)} {verdict}" in said and lies[0]["again"].startswith("curl -s http://127.0.0.1:")
    assert lies[0]["known"] and escaped(lies[0]["why"]) in (tmp_path / "report.html").read_text()


async def test_a_run_that_is_interrupted_tells_what_it_has_found(tmp_path: Path) -> None:
    async with hashing() as server, lying(proxy := LyingProxy(server, lie=hash_server.damaged)) as liar:
        going = asyncio.create_task(run(liar, tmp_path, "--requests 100000"))
        await proxy.has_lied.wait()
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["stopped"] == "Ctrl-C" and report["exit"] != 0 and report["verdicts"]["quiet"] == {"exact": 24}


@pytest.mark.parametrize(
    "words, says",
    [
        ("http://127.0.0.1:1", "nothing answers at http://127.0.0.1:1: ConnectionRefusedError"),
        ("nowhere", "--url: got 'nowhere', expected something like http://127.0.0.1:8000"),
        ("http://127.0.0.1:1 --only x", "--only: got 'x', expected one of load, whole, cold"),
        ("http://127.0.0.1:1 --out /proc/none", "--out: cannot make '/proc/none'"),
        ("http://127.0.0.1:1 --api-key-file /none", "--api-key-file '/none': No such file"),
    ],
)
def test_a_bad_call_is_told_before_anything_is_asked(
    words: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["verify", *words.split()]) == Exit.BAD_CALL
    assert capsys.readouterr().err.startswith(f"baton verify: error: {says}")


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("'", "&#x27;").replace("<", "&lt;")
