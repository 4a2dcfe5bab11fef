"""What the commands make of the GPUs of a machine, with a stand-in for their number."""

from pathlib import Path
from typing import Any

import pytest

from deploy import serve
from deploy.cli import main
from deploy.console import Console
from deploy.machine import count_gpus
from runtime.settings import WorkerSettings

GATEWAY = "--gateway tcp://127.0.0.1:9"


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").write_text("")
    monkeypatch.setattr("deploy.machine._ASK_TORCH", "print(2)")
    monkeypatch.setattr("deploy.serve.count_gpus", lambda device: count_gpus(device, tmp_path))
    monkeypatch.delenv("BATON_GPUS", raising=False)
    monkeypatch.delenv("BATON_DEVICE", raising=False)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    "typed, says",
    [
        ("serve --port 0 --gpus 9", "--gpus: got '9', but there is no GPU 9 for this process; there are 0-1"),
        ("serve --port 0 --device cuda:2", "--device: got 'cuda:2', but there are 0-1"),
        (f"worker --role decode {GATEWAY} --gpus 0,1", "--gpus: got '0,1', expected one GPU for one worker"),
        (
            f"worker --role decode {GATEWAY} --device cpu --workers-on-gpu 2",
            "--workers-on-gpu: got 2, but this worker c",
        ),
        (f"worker --role decode {GATEWAY} --gpus 2", "--gpus: got '2', but there is no GPU 2 for this process"),
    ],
)
def test_wrong_gpus_end_the_command_before_anything_starts(
    typed: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed.split()) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"baton: error: {says}")
    assert (shown.err.count("\n"), shown.out) == (1, "")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    "typed, lines, devices",
    [
        ("serve --port 0", ["GPU 0: prefill-0", "GPU 1: decode-0"], ["cuda:0", "cuda:1"]),
        ("serve --port 0 --device cpu", [], ["cpu", "cpu"]),
        (
            "serve --port 0 --gpus 1",
            ["GPU 1: prefill-0 and decode-0, which divide its memory into 2 parts"],
            ["cuda:1", "cuda:1"],
        ),
        (f"worker --role decode --worker-id d {GATEWAY} --gpus 1", ["GPU 1: d"], ["cuda:1"]),
        (f"worker --role decode --worker-id d {GATEWAY}", ["GPU 0: d"], ["cuda:0"]),
    ],
)
def test_workers_get_their_gpus_and_the_log_says_so(
    typed: str,
    lines: list[str],
    devices: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a stand-in for the launcher, which notes what it is to start."""
    started: list[str] = []

    class Launcher:
        def start(self, specs: Any) -> dict[str, Any]:
            specs = list(specs)
            started.extend(spec.command[-1] for spec in specs if spec.name != "gateway")
            said = {"http": "http://127.0.0.1:1", "control": "tcp://127.0.0.1:1", "kv_pages": 5}
            return {spec.name: said for spec in specs}

    def run(start: Any, *_: Any) -> int:
        start(Launcher())
        return 0

    monkeypatch.setattr(serve, "run", run)
    monkeypatch.setattr("deploy.cli.make_console", lambda _: Console(with_logs=True))
    assert main(typed.split()) == 0
    assert [WorkerSettings.from_json(written).device for written in started] == devices
    assert [line for line in capsys.readouterr().err.splitlines() if "GPU" in line] == [
        f"baton: {line}" for line in lines
    ]
