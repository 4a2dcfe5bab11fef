from pathlib import Path

import pytest

from deploy.ray.node import NodeKeys, fingerprint
from protocol.errors import CheckpointError, ConfigError
from runtime.keys import allowed_in, read_keys


def test_a_folder_of_keys_is_one_that_processes_take(base: Path) -> None:
    gateway, worker = NodeKeys(), NodeKeys()
    listed = {"gateway": gateway.public, "prefill-a": worker.public}
    gateway.trust(gateway.public, listed)
    worker.trust(gateway.public, listed)
    assert read_keys(gateway.folder, for_gateway=True).public == gateway.public != worker.public
    keys = read_keys(worker.folder)
    assert (keys.gateway, allowed_in(worker.folder)) == (gateway.public, {key: name for name, key in listed.items()})
    gateway.close()
    worker.close()
    assert list(base.iterdir()) == []


def test_who_is_no_longer_listed_may_not_connect(base: Path) -> None:
    keys, other = NodeKeys(), NodeKeys()
    keys.trust(keys.public, {"gateway": keys.public, "x": other.public})
    keys.trust(keys.public, {"gateway": keys.public})
    assert allowed_in(keys.folder) == {keys.public: "gateway"}
    keys.close()
    other.close()


@pytest.mark.parametrize(("name", "key"), [("x", "short"), ("../x", "0" * 40), ("x", '"' * 40)])
def test_what_is_no_key_is_not_written(base: Path, name: str, key: str) -> None:
    keys = NodeKeys()
    keys.trust(keys.public, {"gateway": keys.public})
    with pytest.raises(ConfigError, match="expected 40 characters"):
        keys.trust(keys.public, {"gateway": keys.public, name: key})
    assert allowed_in(keys.folder) == {keys.public: "gateway"}
    keys.close()


def test_a_fingerprint_sees_small_files_whole_and_weights_by_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"12")
    first = fingerprint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"34")
    assert fingerprint(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"345")
    second = fingerprint(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert len({first, second, fingerprint(tmp_path)}) == 3


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"args.model: cannot read .*gone"):
        fingerprint(tmp_path / "gone")
