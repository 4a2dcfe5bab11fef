"""Host memory that a GPU reaches: what is registered is taken back, in order and on every way out."""

import gc

import pytest
import torch

from model import pinned_memory
from model.host_copies import HostCopies
from model.mirrored_kv import MirroredKv
from model.paged_kv import PagedKv
from model.pinned_memory import pin
from protocol.errors import ConfigError
from protocol.kv_layout import KvLayout
from tests.doubles.cuda_recorder import CudaRecorder

LAYOUT = KvLayout.uniform(2, 1, 4, 4, "bfloat16")
GPU = torch.device("cuda", 0)
NUM_BYTES = LAYOUT.pool_bytes(9)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaRecorder:
    """Memory is registered in three pieces, the last one shorter."""
    monkeypatch.setattr(pinned_memory, "PIECE_BYTES", NUM_BYTES * 2 // 5)
    return CudaRecorder.installed(monkeypatch)


def test_no_call_registers_more_than_16_gib() -> None:
    assert pinned_memory.PIECE_BYTES == 16 << 30


def test_memory_is_registered_in_pieces_that_cover_it(cuda: CudaRecorder) -> None:
    host = PagedKv(LAYOUT, 9)
    pin(host, GPU, "max-total-tokens")
    piece, start = NUM_BYTES * 2 // 5, host.device_bytes.data_ptr()
    assert cuda.calls == [
        ("register", start, piece),
        ("register", start + piece, piece),
        ("register", start + 2 * piece, NUM_BYTES - 2 * piece),
    ]


def test_memory_is_unregistered_before_it_is_unmapped_once_the_device_is_idle(cuda: CudaRecorder) -> None:
    host = PagedKv(LAYOUT, 9)
    pin(host, GPU, "max-total-tokens")
    mapping, addresses = host.device_bytes, [address for _, address, _ in cuda.calls]
    cuda.calls.clear()
    del host
    gc.collect()
    assert cuda.calls == [("stream.query", 0), ("synchronize",), *(("unregister", address) for address in addresses)]
    assert mapping.data_ptr() == addresses[0]  # it is still there


def test_a_refused_piece_is_a_config_error_and_those_before_are_taken_back(cuda: CudaRecorder) -> None:
    host, cuda.num_allowed = PagedKv(LAYOUT, 9), 2
    with pytest.raises(ConfigError, match=r"--max-total-tokens: .* cannot be pinned for cuda:0: .* answered 2;") as why:
        pin(host, GPU, "max-total-tokens")
    assert why.value.param == "max-total-tokens" and "ulimit -l" in why.value.message
    registered = [address for name, address, *_ in cuda.calls if name == "register"]
    assert [address for name, address, *_ in cuda.calls if name == "unregister"] == registered[:2]
    cuda.calls.clear()
    del host
    gc.collect()
    assert cuda.calls == []


def test_a_broken_device_is_neither_waited_for_nor_asked_again(cuda: CudaRecorder) -> None:
    host = PagedKv(LAYOUT, 9)
    pin(host, GPU, "max-total-tokens")
    cuda.calls.clear()
    cuda.break_down()
    del host
    gc.collect()
    assert cuda.calls == [("stream.query", 0)]


def test_memory_of_a_cpu_is_not_registered(cuda: CudaRecorder) -> None:
    host = HostCopies(PagedKv(LAYOUT, 9), 4)
    del host
    gc.collect()
    assert cuda.calls == []


@pytest.mark.gpu
def test_a_gpu_copies_across_pieces_and_takes_the_same_memory_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_memory, "PIECE_BYTES", 1 << 20)
    layout = KvLayout.uniform(2, 2, 64, 16, "bfloat16")
    pages_N = torch.arange(1, 400, device=GPU)
    for _ in range(3):  # the system gives the memory of the last turn again
        kv = MirroredKv(layout, 400, GPU)
        assert layout.pool_bytes(400) > 5 << 20
        kv.device_bytes.random_(0, 255)
        wanted = [kv.layer(layer)[1:].view(torch.int16).clone() for layer in range(2)]
        for layer in range(2):
            kv.stage_out(layer, pages_N)
        torch.cuda.synchronize()
        kv.device_bytes.zero_()
        kv.stage_in(pages_N)
        assert all(torch.equal(kv.layer(layer)[1:].view(torch.int16), wanted[layer]) for layer in range(2))
        del kv
        gc.collect()
