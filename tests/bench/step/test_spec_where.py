"""Times of a launch's parts: who is charged for what, and which parts are shown."""

from bench.step.spec_where import TimedStream, rows_of


def test_each_segment_and_what_lies_before_it_are_charged_what_they_took() -> None:
    at = 0.0

    def spend(seconds: float) -> None:
        nonlocal at
        at += seconds

    def propose(seconds: float) -> None:
        spend(seconds)

    def extend(seconds: float) -> None:
        spend(2 * seconds)

    stream = TimedStream(lambda: at)
    for _ in range(2):
        spend(3)
        stream.launch([propose, extend], 5)
    spend(1)
    stream.launch([extend], 7)
    assert dict(stream.spent_us) == {
        "host before propose": [3e6, 3e6],
        "propose": [5e6, 5e6],
        "extend": [10e6, 10e6, 14e6],
        "host before extend": [1e6],
    }


def test_parts_that_few_launches_have_are_left_out_and_the_others_are_ordered() -> None:
    runs = [{"a": [1.0, 2.0, 3.0], "rare": [50.0], "b": [4.0] * 3}, {"a": [9.0, 8.0, 7.0], "rare": [], "b": [4.0] * 3}]
    parts = [(row["part"], row["us"]) for row in rows_of(runs)]
    assert parts == [("all", 9.0), ("a", 5.0), ("b", 4.0)]
