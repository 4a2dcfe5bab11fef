"""The shape of KV memory, which two workers compare before KV moves; and all arithmetic of pages, tokens and bytes.

token t of a context lies in its page t // page_size, at offset t % page_size; the last page may be partly filled
layers are numbered through all groups; in a pool, groups lie one after the other, and so do the layers of a group
page p of the i-th layer of a group lies at byte (i * num_pages + p) * page_bytes from the beginning of its group
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Final

from pydantic import Field

from protocol.message import Count, Message, Positive, Text

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GROUP_ALIGNMENT: Final = 256  # bytes: a group begins at a multiple of it, so that every device takes words from there


@dataclass(frozen=True)
class LayerGroup(Message):
    """Layers whose pages have one shape: those of one model. `lookahead`: the KV of token t depends on the tokens up to
    t + lookahead; it is 0 for a model, and more for a draft."""

    num_layers: Positive
    num_kv_heads: Positive
    head_dim: Positive
    lookahead: Count = 0


@dataclass(frozen=True)
class LayerLayout:
    """The pages of one layer: `(num_pages, 2, page_size, num_kv_heads, head_dim)`. [:, 0] is K, [:, 1] is V."""

    num_kv_heads: int
    head_dim: int
    page_size: int  # tokens
    dtype: str  # a key of ITEM_BYTES

    @property
    def head_bytes(self) -> int:
        """Bytes of K (or of V) of one head of one token."""
        return self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of K (or of V) of one token."""
        return self.num_kv_heads * self.head_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, K and V together."""
        return 2 * self.page_size * self.token_bytes

    def num_pages(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens need; the last page may be partly filled."""
        return pages_for(num_tokens, self.page_size)


@dataclass(frozen=True)
class KvLayout(Message):
    """Several groups of layers, such as a model's and its draft's. A token has the same page in every layer.

    Page `p` of layer `l` is one contiguous run of `layer(l).page_bytes`.
    """

    groups: Annotated[tuple[LayerGroup, ...], Field(min_length=1, fail_fast=True)]
    page_size: Positive  # tokens
    dtype: Text  # a key of ITEM_BYTES

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"KvLayout.dtype: got {self.dtype!r}, expected one of {', '.join(ITEM_BYTES)}")

    @classmethod
    def uniform(cls, num_layers: int, num_kv_heads: int, head_dim: int, page_size: int, dtype: str) -> "KvLayout":
        """The layout of one group."""
        return cls((LayerGroup(num_layers, num_kv_heads, head_dim),), page_size, dtype)

    @property
    def without_draft(self) -> "KvLayout":
        """The layout of the first group alone, which is the model's."""
        return replace(self, groups=self.groups[:1])

    @property
    def num_layers(self) -> int:
        """The layers of all groups."""
        return sum(group.num_layers for group in self.groups)

    @property
    def lookahead(self) -> int:
        """The largest of all groups."""
        return max(group.lookahead for group in self.groups)

    @cached_property
    def group_layouts(self) -> tuple[LayerLayout, ...]:
        """The layout of each group's layers."""
        return tuple(
            LayerLayout(group.num_kv_heads, group.head_dim, self.page_size, self.dtype) for group in self.groups
        )

    def place(self, layer: int) -> tuple[int, int]:
        """(the layer's group, its number within the group)."""
        assert 0 <= layer < self.num_layers, f"layer {layer} of {self.num_layers}"
        return self._places[layer]

    @cached_property
    def _places(self) -> tuple[tuple[int, int], ...]:
        return tuple((index, at) for index, group in enumerate(self.groups) for at in range(group.num_layers))

    def layer(self, layer: int) -> LayerLayout:
        """The layout of one layer."""
        return self.group_layouts[self.place(layer)[0]]

    @property
    def all_page_bytes(self) -> int:
        """Bytes of one page number: that page of every layer."""
        layers = zip(self.groups, self.group_layouts, strict=True)
        return sum(group.num_layers * layer.page_bytes for group, layer in layers)

    @property
    def largest_page_bytes(self) -> int:
        """Bytes of one page of the layer whose pages are largest."""
        return max(layer.page_bytes for layer in self.group_layouts)

    def num_pages(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens need; the last page may be partly filled."""
        return pages_for(num_tokens, self.page_size)

    def tokens_in(self, num_tokens: int, page_start: int, num_pages: int) -> int:
        """How many of a context's `num_tokens` tokens lie in its pages [page_start, page_start + num_pages)."""
        first = page_start * self.page_size
        return max(0, min(num_tokens, first + num_pages * self.page_size) - first)

    def pool_tokens(self, num_pages: int) -> int:
        """Tokens that fit into a pool of `num_pages` pages, of which page 0 is padding."""
        return (num_pages - 1) * self.page_size

    def group_spans(self, pool_pages: int) -> list[slice]:
        """The bytes of each group in a pool of `pool_pages` pages."""
        spans, end = [], 0
        for group, layer in zip(self.groups, self.group_layouts, strict=True):
            start = -(-end // GROUP_ALIGNMENT) * GROUP_ALIGNMENT
            end = start + group.num_layers * pool_pages * layer.page_bytes
            spans.append(slice(start, end))
        return spans

    def pool_bytes(self, num_pages: int) -> int:
        """Bytes of a pool of `num_pages` pages, all layers together."""
        num_bytes: int = self.group_spans(num_pages)[-1].stop
        return num_bytes

    def span(self, pool_pages: int, layer: int, page_start: int, num_pages: int) -> slice:
        """The bytes of pages [page_start, page_start + num_pages) of `layer` in a pool of `pool_pages` pages."""
        group, index = self.place(layer)
        assert 0 <= page_start <= page_start + num_pages <= pool_pages
        page_bytes = self.group_layouts[group].page_bytes
        start = self.group_spans(pool_pages)[group].start + (index * pool_pages + page_start) * page_bytes
        return slice(start, start + num_pages * page_bytes)


def pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that `num_tokens` tokens need; the last page may be partly filled."""
    return -(-num_tokens // page_size)


def full_pages(num_tokens: int, page_size: int) -> int:
    """Pages that `num_tokens` tokens fill. Both arguments may also be in bytes."""
    return num_tokens // page_size


def touched(start: int, end: int, page_size: int) -> slice:
    """The pages that hold some of the tokens [start, end). All arguments may also be in bytes."""
    return slice(start // page_size, pages_for(end, page_size))


def settled_pages(num_tokens: int, page_size: int, lookahead: int = 0) -> int:
    """Pages whose KV depends on the first `num_tokens` tokens only, whatever follows them. For `lookahead` see
    LayerGroup."""
    return full_pages(max(num_tokens - lookahead, 0), page_size)


def pages_for_choices(prompt_len: int, num_tokens: int, num_choices: int, page_size: int, lookahead: int = 0) -> int:
    """Distinct pages for `num_choices` contexts of `num_tokens` tokens each, which share the prompt's settled pages."""
    total = pages_for(num_tokens, page_size)
    shared = min(settled_pages(prompt_len, page_size, lookahead), total)
    return total + (num_choices - 1) * (total - shared)


def longest_choices(prompt_len: int, num_choices: int, num_pages: int, page_size: int, lookahead: int = 0) -> int:
    """The largest `num_tokens` for which pages_for_choices is at most `num_pages`.

    It is less than `prompt_len` if the prompt alone does not fit.
    """
    shared = settled_pages(prompt_len, page_size, lookahead)
    return (shared + (num_pages - shared) // num_choices) * page_size


def mismatch(ours: KvLayout, theirs: KvLayout, our_id: str, their_id: str) -> str | None:
    """One sentence with the first field that prevents KV from moving between two workers, or None.

    Page sizes may differ.
    """
    if len(ours.groups) != len(theirs.groups):
        return (
            f"the number of layer groups (a model's and its draft's) is {len(ours.groups)} on {our_id},"
            f" {len(theirs.groups)} on {their_id}"
        )

    pairs: list[tuple[str, int | str, int | str]] = []
    for index, (mine, other) in enumerate(zip(ours.groups, theirs.groups, strict=True)):
        where = "" if len(ours.groups) == 1 else f" of layer group {index}"
        names = ("num_layers", "num_kv_heads", "head_dim", "lookahead")
        pairs += [(name + where, getattr(mine, name), getattr(other, name)) for name in names]
    for name, one, two in (*pairs, ("dtype", ours.dtype, theirs.dtype)):
        if one != two:
            return f"{name} is {one} on {our_id}, {two} on {their_id}"
    return None
