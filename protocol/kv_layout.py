"""The shape of KV memory, which two workers compare before KV moves; and all arithmetic of pages, tokens and bytes.

token t of a context lies in its page t // page_size, at offset t % page_size; the last page may be partly filled
page p of layer l lies in a pool of num_pages pages at byte (l * num_pages + p) * page_bytes
"""

from dataclasses import dataclass

from protocol.message import Count, Message, Text

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class KvLayout(Message):
    """KV of one layer is `(num_pages, 2, page_size, num_kv_heads, head_dim)`: [:, 0] is K, [:, 1] is V.

    Layers lie one after the other, so page `p` of layer `l` is one contiguous run of `page_bytes`.
    """

    num_layers: Count
    num_kv_heads: Count
    head_dim: Count
    page_size: Count  # tokens
    dtype: Text  # a key of ITEM_BYTES

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "page_size"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"KvLayout.{name}: got {value}, expected at least 1")
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"KvLayout.dtype: got {self.dtype!r}, expected one of {', '.join(ITEM_BYTES)}")

    @property
    def token_bytes(self) -> int:
        """Bytes of K (or of V) of one token in one layer."""
        return self.num_kv_heads * self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer, K and V together."""
        return 2 * self.page_size * self.token_bytes

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

    def pool_bytes(self, num_pages: int) -> int:
        """Bytes of a pool of `num_pages` pages, all layers together."""
        return self.num_layers * num_pages * self.page_bytes

    def span(self, pool_pages: int, layer: int, page_start: int, num_pages: int) -> slice:
        """The bytes of pages [page_start, page_start + num_pages) of `layer` in a pool of `pool_pages` pages."""
        assert 0 <= layer < self.num_layers and 0 <= page_start <= page_start + num_pages <= pool_pages
        start = (layer * pool_pages + page_start) * self.page_bytes
        return slice(start, start + num_pages * self.page_bytes)


def pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that `num_tokens` tokens need; the last page may be partly filled."""
    return -(-num_tokens // page_size)


def full_pages(num_tokens: int, page_size: int) -> int:
    """Pages that `num_tokens` tokens fill. Both arguments may also be in bytes."""
    return num_tokens // page_size


def touched(start: int, end: int, page_size: int) -> slice:
    """The pages that hold some of the tokens [start, end). All arguments may also be in bytes."""
    return slice(start // page_size, pages_for(end, page_size))


def pages_for_choices(prompt_len: int, num_tokens: int, num_choices: int, page_size: int) -> int:
    """Distinct pages for `num_choices` contexts of `num_tokens` tokens each, which share the prompt's full pages."""
    total = pages_for(num_tokens, page_size)
    shared = min(full_pages(prompt_len, page_size), total)
    return total + (num_choices - 1) * (total - shared)


def longest_choices(prompt_len: int, num_choices: int, num_pages: int, page_size: int) -> int:
    """The largest `num_tokens` for which pages_for_choices is at most `num_pages`.

    It is less than `prompt_len` if the prompt alone does not fit.
    """
    shared = full_pages(prompt_len, page_size)
    return (shared + (num_pages - shared) // num_choices) * page_size


def mismatch(ours: KvLayout, theirs: KvLayout, our_id: str, their_id: str) -> str | None:
    """One sentence with the first field that prevents KV from moving between two workers, or None.

    Page sizes may differ.
    """
    for name in ("num_layers", "num_kv_heads", "head_dim", "dtype"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine != other:
            return f"{name} is {mine} on {our_id}, {other} on {their_id}"
    return None
