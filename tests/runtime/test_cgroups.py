from pathlib import Path

from runtime.cgroups import groups_of, read_if_there


def groups(tmp_path: Path, listing: str, controller: str) -> list[tuple[str, bool]]:
    (tmp_path / "listing").write_text(listing)
    found = groups_of(controller, tmp_path / "listing", Path("/fs"))
    return [(str(folder), is_v2) for folder, is_v2 in found]


def test_the_own_group_comes_before_its_parents(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/a/b\n", "cpu") == [("/fs/a/b", True), ("/fs/a", True), ("/fs", True)]


def test_version_1_has_a_tree_for_each_controller(tmp_path: Path) -> None:
    listing = "9:memory:/m\n4:cpu,cpuacct:/a\n1:name=systemd:/s\n"
    assert groups(tmp_path, listing, "memory") == [("/fs/memory/m", False), ("/fs/memory", False)]
    cpu = ["/fs/cpu,cpuacct/a", "/fs/cpu,cpuacct", "/fs/cpu/a", "/fs/cpu"]
    assert groups(tmp_path, listing, "cpu") == [(folder, False) for folder in cpu]


def test_a_path_above_the_mounted_root_stays_below_it(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/../../x\n", "memory") == [("/fs/x", True), ("/fs", True)]


def test_what_cannot_be_read_has_no_groups(tmp_path: Path) -> None:
    assert list(groups_of("cpu", tmp_path / "none", tmp_path)) == []
    assert read_if_there(tmp_path) == ""
