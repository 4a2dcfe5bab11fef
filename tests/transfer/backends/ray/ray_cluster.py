"""A Ray cluster of two nodes on this host, for tests: small, without a dashboard, gone with them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import psutil
import ray
from ray.cluster_utils import Cluster

STORE_BYTES = 160 * 1024 * 1024
NODE = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
NUM_STARTS = 3  # on a host that is busy, or pauses, Ray gives up a start after half a minute


@contextmanager
def ray_cluster() -> Iterator[str]:
    """Its address, with this process a driver on its first node; the other has the resource `second`."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # sockets in it have to have short paths
    (folder / "ray").mkdir()
    variables = {"RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    others = children()
    with patch.dict(os.environ, variables):
        cluster = Cluster(initialize_head=False)
        try:
            start(cluster, others)
            yield cluster.address
        finally:
            end(cluster, others)
            shutil.rmtree(folder)


def start(cluster: Cluster, others: set[psutil.Process]) -> None:
    """Two nodes, and this process on the first; tries again where Ray takes too long."""
    for turn in range(1, NUM_STARTS + 1):
        try:
            cluster.add_node(**NODE)
            cluster.add_node(**NODE, resources={"second": 1})
            ray.init(address=cluster.address, namespace="baton", log_to_driver=False, configure_logging=False)
        except Exception:  # Ray raises nothing more definite
            if turn == NUM_STARTS:
                raise
            end(cluster, others)
        else:
            return


def end(cluster: Cluster, others: set[psutil.Process]) -> None:
    """No process of the cluster is left; `others` were there before it."""
    started = children() - others
    ray.shutdown()
    cluster.shutdown()
    late = psutil.wait_procs([*started], timeout=2)[1]
    for process in late:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(late, timeout=60)  # one that still runs may write where the folder is removed


def children() -> set[psutil.Process]:
    """Of this process, and theirs."""
    return set(psutil.Process().children(recursive=True))


def stored_bytes() -> float:
    """What the object stores hold."""
    return 2 * STORE_BYTES - float(ray.available_resources()["object_store_memory"])
