"""Ray alone with the same bytes: put, a reference through an actor, get, checksum, copy into place.

Also starts the one-node cluster on which this and KV over Ray are measured.
"""

import asyncio
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
import xxhash

from bench.transfer.blocks import Blocks, HostPages
from runtime.clock import MonotonicClock

PUT_BYTES = 16 * 1024 * 1024  # of one object; Ray is fastest with this size
STORE_BYTES = 1024 * 1024 * 1024
NAMESPACE = "baton"
START_S = 60


@contextmanager
def cluster() -> Iterator[None]:
    """Starts a cluster, whose address is in RAY_ADDRESS, and stops it. It ends with this process at the latest."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # paths of its sockets must be short
    ours = {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    before = {name: os.environ.get(name) for name in (*ours, "RAY_ADDRESS")}
    os.environ.update(ours)
    os.environ.pop("RAY_ADDRESS", None)

    try:
        context = ray.init(
            address="local",
            num_cpus=1,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=str(Path(folder) / "ray"),
        )
        os.environ["RAY_ADDRESS"] = str(context.address_info["gcs_address"])
        yield
    finally:
        ray.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        shutil.rmtree(folder)


class Mailbox:
    """An actor that passes references on."""

    def __init__(self) -> None:
        self._posted: asyncio.Queue[list[Any]] = asyncio.Queue()

    async def post(self, references: list[Any]) -> None:
        """Takes references in a list, so that Ray does not fetch what they refer to."""
        await self._posted.put(references)

    async def take(self) -> list[Any]:
        """Waits for the next list."""
        return await self._posted.get()


class RayPutEnd:
    """Puts every piece and posts its reference."""

    def __init__(self, memory: HostPages, blocks: Blocks) -> None:
        _join()
        self._pieces = [np.frombuffer(piece, np.uint8) for piece in memory.pieces(blocks.num_bytes, PUT_BYTES)]
        self._mailbox: Any = None
        self.address = ""

    def meet(self, address: str) -> None:
        """Finds the mailbox."""
        self._mailbox = ray.get_actor(address, NAMESPACE)

    def move(self, check: bool) -> dict[str, float]:
        """Sends, and waits until all is posted."""
        start = MonotonicClock().now()
        ray.get([self._mailbox.post.remote([ray.put(piece)]) for piece in self._pieces])
        return {"start": start}

    def close(self) -> None:
        """Forgets the mailbox."""
        self._mailbox = None


class RayGetEnd:
    """Takes references and gets what they refer to."""

    def __init__(self, memory: HostPages, blocks: Blocks) -> None:
        _join()
        self._pieces = list(memory.pieces(blocks.num_bytes, PUT_BYTES))
        self.address = f"mailbox-{uuid.uuid4().hex}"
        self._mailbox: Any = ray.remote(Mailbox).options(name=self.address, namespace=NAMESPACE, num_cpus=0).remote()
        ray.get(self._mailbox.__ray_ready__.remote(), timeout=START_S)

    def meet(self, address: str) -> None:
        """Does nothing: the other end finds the mailbox."""

    def move(self, check: bool) -> dict[str, float]:
        """Gets, checksums and copies piece by piece. All pieces are asked for in advance."""
        digest = xxhash.xxh3_64()
        coming = [self._mailbox.take.remote() for _ in self._pieces]
        for piece, taken in zip(self._pieces, coming, strict=True):
            (reference,) = ray.get(taken)
            array = ray.get(reference)
            if check:
                digest.update(array)
            piece[:] = memoryview(array)
        return {"end": MonotonicClock().now()}

    def close(self) -> None:
        """Ends the mailbox."""
        ray.kill(self._mailbox)


def _join() -> None:
    if not ray.is_initialized():
        ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
