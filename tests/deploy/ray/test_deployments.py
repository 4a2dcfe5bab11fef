"""Baton on a real Ray cluster of one node, by the commands of docs/ray.md: a pair, known tokens, a kill, the end."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")

from testkit.reference import reference
from tests.deploy.ray.asking import check_tokens, flags_of, members, ready, until
from tests.deploy.ray.head_node import PATIENCE_S, HeadNode, free_ports, head_node

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[HeadNode]:
    with head_node(num_cpus=4) as node:
        yield node


def test_what_cannot_serve_is_said_in_one_sentence(cluster: HeadNode, tmp_path: Path) -> None:
    status, text = cluster.say("baton", "ray", "status", RAY_AUTH_TOKEN="0" * 40)
    assert (status, text.count("\n")) == (2, 1) and text.startswith("baton: error: RAY_AUTH_TOKEN: "), text

    file = tmp_path / "baton.yaml"
    file.write_text(cluster.say("baton", "ray", "config", "--decode", "9")[1])
    status, text = cluster.say("baton", "ray", "plan", str(file))
    assert status == 1
    assert "Missing: Decode needs 9 CPUs (9 x 1), the cluster has 4 free on 1 host: no room for" in text

    status, text = cluster.say("baton", "ray", "status", RAY_ADDRESS=f"127.0.0.1:{free_ports(1)[0]}")
    assert (status, text.count("\n")) == (2, 1) and text.startswith("baton: error: RAY_ADDRESS: no Ray at "), text


def test_it_is_deployed_streams_is_mended_and_leaves_nothing(cluster: HeadNode) -> None:
    known = reference("llama")
    (port,) = free_ports(1)
    url, file = f"http://{cluster.host}:{port}", cluster.folder / "baton.yaml"

    status, text = cluster.say("baton", "ray", "config", *flags_of(known, port))
    assert status == 0, text
    file.write_text(text)
    status, text = cluster.say("baton", "ray", "plan", str(file))
    assert status == 0 and f"{cluster.host}  4 CPUs, 0 GPUs free (head): 1 Gateway, 1 Prefill, 1 Decode" in text

    status, text = cluster.say("serve", "deploy", str(file))
    assert status == 0, text
    until(lambda: ready(url), cluster)
    check_tokens(url, known)
    assert {process.nice() for process in cluster.ours()} == {os.nice(0)}  # not that which Ray gives its workers

    # what a holder holds is started again by the holder, with Serve none the wiser
    victim = cluster.ours_of("decode")
    holder = victim.parent()
    victim.kill()
    psutil.wait_procs([victim], PATIENCE_S)
    until(lambda: members(url, "decode") - {victim.pid} and ready(url), cluster)
    check_tokens(url, known)
    assert cluster.ours_of("decode").parent() == holder

    status, text = cluster.say("baton", "ray", "status")
    assert status == 0, text
    assert re.search(rf"^decode-\w+ +{cluster.host} +serving +joined", text, re.MULTILINE), text
    assert f"Clients talk to {url}." in text
    assert "INFO" not in text, "Ray's own lines"

    left = cluster.ours()
    assert len(left) == 3
    with cluster.saying("serve", "shutdown", "-y"):  # Ray answers it half a minute after it is done
        assert not psutil.wait_procs(left, PATIENCE_S)[1]
        until(lambda: not list((cluster.folder / "t").glob("baton-*")), cluster)
        assert not cluster.ours() and not ready(url)
