"""Rows are full, cut nothing, and never teach padding."""

from hypothesis import given
from hypothesis import strategies as st

from models.train.packing import IGNORED, pack

END = 0
DOCUMENTS = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=30), max_size=40)


@given(DOCUMENTS)
def test_every_document_arrives_once_and_whole(documents: list[list[int]]) -> None:
    rows = list(pack(documents, row_tokens=40, end_id=END))
    arrived: list[list[int]] = []
    for inputs, targets in rows:
        assert len(inputs) == len(targets) == 40
        real = [token for token in targets if token != IGNORED]
        ids = [inputs[0], *real]
        assert inputs[1 : len(real)] == real[: len(real) - 1]
        assert targets[len(real) :] == [IGNORED] * (40 - len(real))
        assert ids[-1] == END
        current: list[int] = []
        for token in ids:
            if token == END:
                arrived.append(current)
                current = []
            else:
                current.append(token)
    assert sorted(arrived) == sorted(documents)


def test_long_document_is_cut_to_a_row() -> None:
    rows = list(pack([list(range(1, 100))], row_tokens=10, end_id=END))
    assert rows == [(list(range(1, 11)), list(range(2, 12)))]


def test_rows_are_nearly_full() -> None:
    documents = [[1 + (7 * i) % 90] * (5 + (13 * i) % 90) for i in range(400)]
    rows = list(pack(documents, row_tokens=256, end_id=END))
    num_targets = sum(token != IGNORED for _, targets in rows for token in targets)
    assert num_targets / (256 * len(rows)) > 0.95
