"""Copies of pages, interpreted. Run by test_page_copies_triton.py in a process of its own, with TRITON_INTERPRET=1."""

import pytest
import torch

import tests.interpreted  # noqa: F401 - mends what the installed versions need
from model import page_copies_triton
from model.page_copies_triton import copy_pages
from tests.model.page_copies_cases import CASES, check_copy


@pytest.mark.parametrize("words, layers, pages", CASES)
def test_pages_of_all_layers_are_copied_and_no_others(words: int, layers: int, pages: int) -> None:
    check_copy(copy_pages, words, layers, pages, torch.device("cpu"))


def test_no_pages_start_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_copies_triton, "_kernel", {})
    check_copy(copy_pages, 16, 2, 0, torch.device("cpu"))
