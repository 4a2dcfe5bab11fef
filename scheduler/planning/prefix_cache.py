"""Which pages hold the KV of which tokens: a radix tree over settled pages, one for each salt.

    root -- "the first 3 pages of many prompts" --+-- "2 pages more"
                                                  +-- "1 page more"

An edge is a run of pages and the packed ids of their tokens. Look-ups compare tokens, never hashes alone. Pages leave
from the leaves on, those first whose edge was used longest ago.

KV of a draft depends on tokens after its own (LayerGroup.lookahead). So an edge also has the ids of the tokens that
follow its last page, and only prompts that have them too find that page. The next edge begins with the same ids.
"""

from array import array
from collections.abc import Callable, Sequence, Set
from heapq import heappop, heappush
from itertools import count

from protocol.kv_layout import settled_pages
from protocol.prefixes import ID_BYTES


class _Node:
    """The end of an edge. `ids` are the tokens of its pages and those they look ahead to. `used` is the time of the
    last look-up that passed it."""

    __slots__ = ("children", "ids", "is_queued", "pages", "parent", "salt", "used")

    def __init__(self, parent: "_Node | None", ids: bytes, pages: "array[int]", used: int, salt: str) -> None:
        self.parent = parent
        self.ids = ids
        self.pages = pages
        self.used = used
        self.salt = salt
        self.children: dict[bytes, _Node] | None = None  # by _key; None: a leaf
        self.is_queued = False  # for eviction


class PrefixCache:
    """`is_idle` tells whether nobody reads a page, so that it may leave the tree.

    Whoever reads a page of the tree reads all pages before it too. `lookahead`: the tokens after a page that a prompt
    must have in common with it.
    """

    def __init__(self, page_size: int, is_idle: Callable[[int], bool], lookahead: int = 0) -> None:
        self.num_pages = 0
        self._page_bytes = page_size * ID_BYTES
        self._ahead_bytes = lookahead * ID_BYTES
        self._key_bytes = self._page_bytes + self._ahead_bytes
        self._is_idle = is_idle
        self._roots: dict[str, _Node] = {}  # by salt
        self._times = count(1)
        self._leaves: list[tuple[int, int, _Node]] = []  # heap of (time of use as it was then, tie break, leaf)

    def match(self, ids: bytes, salt: str = "") -> list[int]:
        """The pages of the longest run of settled pages at the start of `ids` that is in the tree."""
        if (root := self._roots.get(salt)) is None:
            return []
        return _path(self._descend(root, ids)[0])

    def num_known(self, ids: bytes, salt: str = "", but: Set[int] = frozenset()) -> int:
        """How many pages `match` would return, up to the first of those in `but`. Does not count as a use of them."""
        node, at = self._roots.get(salt), 0
        while node is not None and (node := (node.children or {}).get(ids[at : at + self._key_bytes])) is not None:
            is_whole = ids.startswith(node.ids, at)
            num = len(node.pages) if is_whole else self._num_same(node.ids, ids, at)
            num_wanted = next((number for number in range(num) if node.pages[number] in but), num) if but else num
            at += num_wanted * self._page_bytes
            if not is_whole or num_wanted < num:
                break
        return at // self._page_bytes

    def insert(self, ids: bytes, pages: Sequence[int], salt: str = "") -> list[int]:
        """Adds the settled pages of `ids`: pages[i] holds page i. Returns the pages that the tree held before.

        The tree keeps its own page where it has one, and takes the others: pages[len(returned):].
        """
        num_full = settled_pages(len(ids), self._page_bytes, self._ahead_bytes)
        if not num_full:
            return []  # without a root for its salt: clients may send any number of salts
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = _Node(None, b"", array("q"), 0, salt)
        node, at = self._descend(root, ids)
        held = _path(node)

        assert num_full <= len(pages), (num_full, len(pages))
        if num_full > len(held):
            rest = ids[at : num_full * self._page_bytes + self._ahead_bytes]
            self._add(node, _Node(node, rest, array("q", pages[len(held) : num_full]), next(self._times), salt))
            self.num_pages += num_full - len(held)
        return held

    def evict(self, num: int) -> list[int]:
        """Removes `num` idle pages, or all there are, and returns them."""
        evicted: list[int] = []
        read: list[_Node] = []
        while len(evicted) < num and self._leaves:
            used, _, leaf = heappop(self._leaves)
            leaf.is_queued = False
            if leaf.children is not None:
                continue  # it is queued again when it becomes a leaf again
            if used != leaf.used:
                self._queue(leaf)
                continue

            self._cut(leaf, num, evicted)
            if leaf.pages:
                read.append(leaf)
            else:
                self._remove(leaf)
        for leaf in read:
            self._queue(leaf)
        self.num_pages -= len(evicted)
        return evicted

    def replace(self, ids: bytes, pages: Sequence[int], salt: str, start: int) -> list[int] | None:
        """Puts pages[i] in the place of page i of `ids`, from page `start` on, as far as the tree has them. Returns
        those that were there. None, and nothing changes: somebody reads pages behind them. `ids` were matched, so that
        the known run ends with an edge."""
        node, at = self._roots[salt], 0
        path = list[tuple[_Node, int]]()  # edges, and the number of each one's last page
        while (child := (node.children or {}).get(ids[at : at + self._key_bytes])) and ids.startswith(child.ids, at):
            node, at = child, at + len(child.ids) - self._ahead_bytes
            path.append((node, at // self._page_bytes))
        path = [(edge, end) for edge, end in path if end > start]
        if not self._is_idle_behind([edge for edge, _ in path]):
            return None

        replaced: list[int] = []
        for edge, end in path:
            first = end - len(edge.pages)
            for number in range(max(start, first), end):
                replaced.append(edge.pages[number - first])
                edge.pages[number - first] = pages[number]
        return replaced

    def _is_idle_behind(self, path: Sequence[_Node]) -> bool:
        """Whether nobody reads a page behind these edges, apart from their own pages. The edges follow one another."""
        nodes = [child for edge in path for child in (edge.children or {}).values() if child not in path]
        while nodes:
            node = nodes.pop()
            if not all(map(self._is_idle, node.pages)):
                return False
            nodes.extend((node.children or {}).values())
        return True

    def clear(self) -> list[int]:
        """Forgets everything. Returns the pages, also those that somebody reads."""
        pages: list[int] = []
        nodes = list(self._roots.values())
        while nodes:
            node = nodes.pop()
            pages.extend(node.pages)
            nodes.extend((node.children or {}).values())
        self._roots.clear()
        self._leaves.clear()
        self.num_pages = 0
        return pages

    def _descend(self, node: _Node, ids: bytes) -> tuple[_Node, int]:
        """The node where the longest known run ends, and the bytes of the run. Splits an edge if it ends inside."""
        now, at = next(self._times), 0
        while True:
            node.used = now
            child = (node.children or {}).get(ids[at : at + self._key_bytes])
            if child is None:
                return node, at
            if not ids.startswith(child.ids, at):
                num_same = self._num_same(child.ids, ids, at)
                node = self._split(child, num_same)
                node.used = now
                return node, at + num_same * self._page_bytes
            node, at = child, at + len(child.ids) - self._ahead_bytes

    def _num_same(self, edge: bytes, ids: bytes, start: int) -> int:
        """How many pages of an edge equal those of `ids` from `start` on: at least one, not all."""
        low, high = 1, (len(edge) - self._ahead_bytes) // self._page_bytes
        while high - low > 1:
            middle = (low + high) // 2
            if ids.startswith(edge[: middle * self._page_bytes + self._ahead_bytes], start):
                low = middle
            else:
                high = middle
        return low

    def _split(self, node: _Node, num_pages: int) -> _Node:
        """Puts a node after the first `num_pages` pages of the edge to `node`, and returns it."""
        assert node.parent is not None and node.parent.children is not None
        at = num_pages * self._page_bytes
        head = _Node(node.parent, node.ids[: at + self._ahead_bytes], node.pages[:num_pages], node.used, node.salt)
        node.parent.children[self._key(head)] = head
        node.parent, node.ids, node.pages = head, node.ids[at:], node.pages[num_pages:]
        head.children = {self._key(node): node}
        return head

    def _add(self, parent: _Node, leaf: _Node) -> None:
        if parent.children is None:
            parent.children = {}
        parent.children[self._key(leaf)] = leaf
        self._queue(leaf)

    def _key(self, node: _Node) -> bytes:
        """The ids of its first page, and those that page looks ahead to."""
        return node.ids[: self._key_bytes]

    def _queue(self, leaf: _Node) -> None:
        if not leaf.is_queued:
            leaf.is_queued = True
            heappush(self._leaves, (leaf.used, next(self._times), leaf))

    def _cut(self, leaf: _Node, num: int, evicted: list[int]) -> None:
        """Moves idle pages from the end of an edge to `evicted`, until that has `num`."""
        while leaf.pages and len(evicted) < num and self._is_idle(leaf.pages[-1]):
            evicted.append(leaf.pages.pop())
        num_bytes = len(leaf.pages) * self._page_bytes + self._ahead_bytes
        if len(leaf.ids) > num_bytes and leaf.pages:
            leaf.ids = leaf.ids[:num_bytes]

    def _remove(self, leaf: _Node) -> None:
        """Takes an edge without pages out of the tree, and a root without edges."""
        parent = leaf.parent
        assert parent is not None and parent.children is not None
        del parent.children[self._key(leaf)]
        if parent.children:
            return
        parent.children = None
        if parent.parent is None:
            del self._roots[parent.salt]
        else:
            self._queue(parent)


def _path(node: _Node) -> list[int]:
    """The pages from the root to a node."""
    runs: list[array[int]] = []
    while node.parent is not None:
        runs.append(node.pages)
        node = node.parent
    return [page for run in reversed(runs) for page in run]
