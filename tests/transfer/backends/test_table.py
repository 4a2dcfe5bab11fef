"""Which backend is opened where there is no device, or none that can be shared."""

import pytest
import zmq

from protocol.errors import ConfigError
from tests.transfer.memory import LAYOUT, HostMemory
from transfer.backends.table import open_device, open_receiver, open_sender


def test_who_has_no_device_cannot_ask_for_it() -> None:
    memory, context = HostMemory(LAYOUT, 2, seed=1), zmq.Context[zmq.Socket[bytes]]()
    for open_end in (
        lambda: open_sender("cuda_ipc", memory, 1, context),
        lambda: open_receiver("cuda_ipc", memory, "127.0.0.1", context),
    ):
        with pytest.raises(
            ConfigError, match="transfer_backend is cuda_ipc, but the KV memory is not on a CUDA device"
        ):
            open_end()
    context.term()


@pytest.mark.parametrize("backend", ["shm", "zmq", "auto"])
def test_others_go_without(backend: str) -> None:
    assert open_device(None, backend) is None
