"""The transfer benchmark: what is moved and how it is summed up, and one short run of the real thing."""

import json

import pytest

from bench.transfer.__main__ import LIMIT, main, middle
from bench.transfer.blocks import BLOCKS, Blocks, HostPages, equal_blocks
from bench.transfer.process import SIDES
from protocol.kv_layout import KvLayout
from tests.bench.reading import figure

TINY = KvLayout.uniform(num_layers=2, num_kv_heads=1, head_dim=2, page_size=4, dtype="bfloat16")


def test_blocks_are_as_large_as_their_names_say() -> None:
    sizes = {name: (blocks.sent.layer(0).page_bytes, blocks.num_bytes) for name, blocks in BLOCKS.items()}
    assert sizes["64 x 16 KiB"] == (16 << 10, 64 * 16 << 10)
    assert sizes["1024 x 16 KiB"] == (16 << 10, 16 << 20)
    assert sizes["256 x 1 MiB"] == (1 << 20, 256 << 20)
    assert sizes["8192 tokens"] == (16 << 10, 64 << 20)


def test_scattered_blocks_lie_elsewhere_on_the_other_side() -> None:
    blocks = equal_blocks(64, 16)
    here, there = blocks.pages(blocks.sent, seed=1), blocks.pages(blocks.landed, seed=2)
    assert sorted(here) == sorted(there) == list(range(1, 65))
    assert here != there


def test_a_digest_is_of_tokens_whatever_pages_they_lie_in() -> None:
    blocks = Blocks(TINY, num_tokens=7, scattered=True, page_size=1)
    wide, narrow = HostPages(blocks.sent, 3), HostPages(blocks.landed, 8)
    wide.fill(1)
    wide_pages, narrow_pages = blocks.pages(blocks.sent, 1), blocks.pages(blocks.landed, 2)
    for layer in range(TINY.num_layers):
        for token in range(blocks.num_tokens):
            page = wide.page_bytes_view(layer, wide_pages[token // 4], 1)
            for half in (0, 1):
                start = (half * 4 + token % 4) * TINY.layer(0).token_bytes
                into = narrow.page_bytes_view(layer, narrow_pages[token], 1)[half * TINY.layer(0).token_bytes :]
                into[: TINY.layer(0).token_bytes] = page[start : start + TINY.layer(0).token_bytes]
    assert wide.digest(wide_pages, 7) == narrow.digest(narrow_pages, 7)
    narrow.page_bytes_view(1, narrow_pages[6], 1)[0] ^= 1
    assert wide.digest(wide_pages, 7) != narrow.digest(narrow_pages, 7)


def test_the_middle_of_rates() -> None:
    assert middle([]) == "" and middle([2.0]) == "2.00 (2.00-2.00)"
    assert middle([float(rate) for rate in range(11)]) == "5.00 (1.00-9.00)"


@pytest.mark.slow
def test_a_short_run_measures_both_sides_and_their_limits(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--repeat", "2", "--blocks", "8192 tokens", "--blocks", "64 x 16 KiB"]) == 0
    [rows] = json.loads(capfd.readouterr().out.splitlines()[-1])["tables"].values()
    assert {row["side"] for row in rows} == {side for side in SIDES if not side.endswith(LIMIT)}
    assert {row["blocks"] for row in rows} == {"8192 tokens", "64 x 16 KiB"}
    assert all(figure(row["GB/s"]) > 0 for row in rows)
    assert all((row["share"] is not None) == (row["side"] + LIMIT in SIDES) for row in rows)
