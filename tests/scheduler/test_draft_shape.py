import pytest

from scheduler.draft_shape import NO_DRAFT, DraftShape


@pytest.mark.parametrize(
    ("shape", "width", "num_computed"),
    [
        (NO_DRAFT, 0, 1),
        (DraftShape(1), 2, 2),
        (DraftShape(4), 5, 5),
        (DraftShape(4, 2, 9), 9, 9),  # the target writes and computes more than a level of the draft
        (DraftShape(4, 5, 9), 16, 9),  # three levels of the draft need more slots than the tree
        (DraftShape(1, 8, 3), 3, 3),  # one level: the draft proposes it without writing
        (DraftShape(2, 8, 3), 9, 8),  # a level of the draft is wider than the tree
    ],
)
def test_a_launch_writes_and_computes_what_a_chain_or_a_tree_needs(
    shape: DraftShape, width: int, num_computed: int
) -> None:
    assert (shape.width, shape.num_computed) == (width, num_computed)
