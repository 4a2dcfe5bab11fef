import subprocess
import sys
from pathlib import Path

import pytest

from deploy.cli import main


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(argv)
    return (status, *capsys.readouterr())


def test_config_takes_the_flags_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = said(capsys, "ray", "config", "--prefill", "2", "--page-size=32", "/models/story")
    assert (status, err) == (0, "")
    for line in ('      model: "/models/story"', "        num_replicas: 2 ", "          page-size: 32"):
        assert f"\n{line}" in out


def test_config_needs_no_ray() -> None:
    """It is made where nothing but Baton is installed, too."""
    script = "import sys; sys.modules['ray'] = None; from deploy.cli import main; sys.exit(main(['ray', 'config']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "import_path: deploy.ray:app" in done.stdout


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "ray: expected one of config, plan, manifest, status; baton ray config"),
        (("stat",), "ray: got 'stat', expected one of config, plan, manifest, status"),
        (("manifest", "a"), "ray manifest: expected baton ray config"),
        (("manifest", "a", "many"), "ray manifest: got 'many' pods, expected a number"),
        (("plan",), "ray plan: expected baton ray config"),
        (("plan", "a", "b"), "ray plan: expected baton ray config"),
        (("status", "a", "b"), "ray status: expected baton ray config"),
        (("config", "--prefill", "0"), "--decode 1 with --prefill 0"),
        (("config", "--gpus", "0"), "--gpus: not for a cluster"),
        (("config", "--prefil", "2"), "unknown flag --prefil for baton ray config, did you mean --prefill?"),
        (("config", "--decode-max", "0"), "--decode-max: got 0, expected at least --decode 1"),
    ],
)
def test_a_wrong_word_is_answered_in_one_sentence(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], words: str
) -> None:
    status, out, err = said(capsys, "ray", *argv)
    assert (status, out) == (2, "")
    assert err.startswith("baton: error: ") and words in err and err.count("\n") == 1


def test_a_file_is_read_before_any_cluster_is_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")
    (tmp_path / "baton.yaml").write_text("applications: []\n")
    status, _, err = said(capsys, "ray", "plan", str(tmp_path / "baton.yaml"))
    assert status == 2 and "baton.yaml: applications: got '[]', expected" in err


def test_the_dashboard_is_no_cluster(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    status, _, err = said(capsys, "ray", "status")
    assert status == 2 and "RAY_ADDRESS: got 'http://127.0.0.1:8265', the address of a dashboard" in err
