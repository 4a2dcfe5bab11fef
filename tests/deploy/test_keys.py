"""What `baton keys` makes, and what it refuses."""

import stat
from pathlib import Path

import pytest

from deploy.cli import main
from protocol.errors import ConfigError
from runtime.keys import allowed_in, is_key, read_keys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def say(*words: object) -> int:
    return main(["keys", *map(str, words)])


def test_one_command_makes_all_that_is_needed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert say("new", folder) == 0
    assert capsys.readouterr().out == f"{folder}/gateway: --keys of the gateway\n{folder}/worker: --keys of workers\n"
    gateway, worker = read_keys(folder / "gateway", for_gateway=True), read_keys(folder / "worker")
    assert gateway.is_gateway and not worker.is_gateway
    assert worker.gateway == gateway.public != worker.public
    assert is_key(worker.secret) and worker.secret not in repr(worker)
    assert allowed_in(folder / "gateway") == allowed_in(folder / "worker")
    assert allowed_in(folder / "worker") == {gateway.public: "gateway", worker.public: "worker"}
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_hosts_are_added_and_revoked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert say("new", folder, "host-a", "host-b") == 0
    assert say("new", folder, "host-c") == 0
    assert f"Copy {folder}/gateway/allowed/host-c.key into allowed/" in capsys.readouterr().out
    names = ["gateway", "host-a", "host-b", "host-c"]
    for name in names:
        assert sorted(allowed_in(folder / name).values()) == names
        assert read_keys(folder / name).gateway == read_keys(folder / "gateway").public
    assert say("list", folder) == 0
    listed = capsys.readouterr().out
    assert listed.split()[::2] == names and all(map(is_key, listed.split()[1::2]))
    assert say("list", folder / "host-b") == 0
    assert capsys.readouterr().out == listed
    assert say("revoke", folder, "host-b") == 0
    assert sorted(path.name for path in folder.iterdir()) == ["gateway", "host-a", "host-c"]
    for name in ("gateway", "host-a", "host-c"):
        assert sorted(allowed_in(folder / name).values()) == ["gateway", "host-a", "host-c"]


def test_where_every_name_is_revoked_none_is_left(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert say("new", folder) == 0 == say("revoke", folder, "worker")
    assert say("revoke", folder, "worker") == 2
    assert "keys revoke: got worker, but no name is left to revoke" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, says",
    [
        ("", "keys: expected one of new, list, revoke; baton keys new DIR [NAME ...]"),
        ("now {}", "keys: got 'now', expected one of new, list, revoke"),
        ("new", "keys new: expected baton keys new DIR"),
        ("list {} x", "keys list: expected baton keys new DIR"),
        ("revoke {}", "keys revoke: expected baton keys new DIR"),
        ("new {}", "has keys; name the hosts to add"),
        ("new {} worker", "worker is there already; expected another name"),
        ("new {} gateway", "gateway is there already"),
        ("new {} x x/", "expected letters, digits"),
        ("new {} ../x", "got the name '../x', expected letters, digits, '.', '_' and '-'"),
        ("new {}/worker x", "is not empty, and holds no keys; expected a new folder"),
        ("new {}/worker/own.key_secret/x", "Not a directory"),
        ("revoke {} gateway", "got gateway, expected one of worker"),
        ("revoke {} host-z", "got host-z, expected one of worker"),
        ("list {}/nowhere", "nowhere': it does not exist"),
    ],
)
def test_what_makes_no_sense_is_said(folder: Path, capsys: pytest.CaptureFixture[str], words: str, says: str) -> None:
    assert say("new", folder) == 0
    before = sorted(folder.rglob("*"))
    capsys.readouterr()
    assert say(*words.format(folder).split()) == 2
    assert says in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "damage, says",
    [
        (lambda folder: folder.rename(folder.with_name("other")), "worker': it does not exist"),
        (lambda folder: (folder / "own.key_secret").unlink(), "it has no own.key_secret; `baton keys new` makes one"),
        (lambda folder: (folder / "own.key_secret").chmod(0o640), "others may read it (mode 640); say `chmod go-rwx`"),
        (lambda folder: (folder / "own.key_secret").write_text("nothing"), "own.key_secret': it is not a key file"),
        (lambda folder: (folder / "own.key_secret").write_bytes(b"public-key = \xff"), "it is not a key file"),
        (lambda folder: cut(folder / "own.key_secret", "secret-key"), "it holds no secret key"),
        (lambda folder: (folder / "gateway.key").write_text('public-key = "short"'), "its public key is damaged"),
        (lambda folder: (folder / "gateway.key").unlink(), "gateway.key': No such file or directory"),
        (lambda folder: (folder / "gateway.key").chmod(0o620), "others may change it (mode 620); say `chmod go-w`"),
        (lambda folder: (folder / "allowed").chmod(0o770), "others may change it (mode 770)"),
        (
            lambda folder: (folder / "allowed" / "worker.key").chmod(0o602),
            "worker.key': others may change it (mode 602)",
        ),
        (lambda folder: (folder / "allowed" / "x.key").write_text(""), "x.key': it is not a key file"),
        (
            lambda folder: [path.unlink() for path in (folder / "allowed").iterdir()],
            "it holds no key, so no process could",
        ),
    ],
)
def test_a_folder_that_is_not_right_is_refused(folder: Path, damage: object, says: str) -> None:
    assert say("new", folder) == 0
    assert callable(damage)
    damage(folder / "worker")
    with pytest.raises(ConfigError) as caught:
        read_keys(folder / "worker")
    assert says in caught.value.message and caught.value.param == "keys"
    assert caught.value.message.startswith("--keys: ")


def cut(path: Path, word: str) -> None:
    path.write_text("\n".join(line for line in path.read_text().splitlines() if word not in line))


def test_folders_for_others_are_refused_by_name(folder: Path) -> None:
    assert say("new", folder) == 0
    with pytest.raises(ConfigError, match=r"it has no own\.key_secret; expected one of the folders in it: gateway"):
        read_keys(folder)
    with pytest.raises(ConfigError, match=r"it is the folder of a worker: its own key is not the one in gateway\.key"):
        read_keys(folder / "worker", for_gateway=True)


@pytest.mark.parametrize("text", ["", "x" * 39, "x" * 41, "x" * 39 + ";", "x" * 39 + "\u00e9", "#" * 40])
def test_what_is_no_key(text: str) -> None:
    assert not is_key(text)
