"""What a copy of pages must do, whoever does it."""

import torch

from model.mirrored_kv import CopyPages

CASES = [(16, 1, 1), (1024, 3, 5), (1500, 2, 40), (2, 4, 33), (16, 2, 0)]  # words of a page, layers, pages to copy


def check_copy(copy: CopyPages, words: int, layers: int, pages: int, device: torch.device) -> None:
    """Scattered pages of some layers to other pages of a larger memory; all else stays."""
    generator = torch.Generator().manual_seed(words)
    source_LPW = torch.randint(1, 1 << 62, (layers + 1, 2 * pages + 3, words), generator=generator)
    target_LPW = torch.zeros((layers + 1, 3 * pages + 5, words), dtype=torch.int64)
    from_N = torch.randperm(2 * pages + 2, generator=generator)[:pages] + 1
    to_N = torch.randperm(3 * pages + 4, generator=generator)[:pages] + 1
    expected_LPW = target_LPW.clone()
    expected_LPW[1:, to_N] = source_LPW[1:, from_N]
    at_device = target_LPW.to(device)
    copy(source_LPW.to(device)[1:], at_device[1:], from_N.to(device), to_N.to(device))
    assert torch.equal(at_device.cpu(), expected_LPW)
