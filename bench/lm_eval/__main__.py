"""`python -m bench.lm_eval ONE OTHER`: how far the samples of two runs of lm-eval are from one another.

Each argument is an `--output_path` of lm-eval with `--log_samples`. Ends with 1 if a log-probability differs by more
than BOUND, or if a choice of greedy tokens or a generated text differs.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

BOUND: Final = 1e-3  # between two sums of log-probabilities


def samples_of(folder: Path) -> dict[str, dict[int, list[Any]]]:
    """By task and item, what the model answered: (log-probability, is greedy) of each choice, or a text."""
    by_task: dict[str, dict[int, list[Any]]] = {}
    for path in sorted(folder.rglob("samples_*.jsonl")):  # the newest run last
        task = path.name.removeprefix("samples_").rpartition("_")[0]
        samples = map(json.loads, path.read_text().splitlines())
        by_task[task] = {sample["doc_id"]: sample["filtered_resps"] for sample in samples}
    return by_task


def differences(one: dict[int, list[Any]], other: dict[int, list[Any]]) -> Iterator[tuple[float, str]]:
    """Of each answer: how far the log-probabilities are apart, and what differs otherwise; "" if nothing does."""
    if one.keys() != other.keys():
        yield 0.0, f"items {sorted(one.keys() ^ other.keys())} are in one run only"
    for item in sorted(one.keys() & other.keys()):
        for first, second in zip(one[item], other[item], strict=True):
            if isinstance(first, str):
                yield 0.0, "" if first == second else f"item {item}: {first!r} and {second!r}"
            else:
                (value, greedy), (other_value, other_greedy) = first, second
                same = str(greedy) == str(other_greedy)
                yield abs(float(value) - float(other_value)), "" if same else f"item {item}: one is greedy"


def main() -> int:
    """A line for each task."""
    parser = argparse.ArgumentParser(prog="python -m bench.lm_eval", description=__doc__)
    parser.add_argument("one", type=Path)
    parser.add_argument("other", type=Path)
    args = parser.parse_args()
    one, other = samples_of(args.one), samples_of(args.other)
    is_wrong = not one or one.keys() != other.keys()
    for task in sorted(one.keys() & other.keys()):
        apart = list(differences(one[task], other[task]))
        most, wrong = max(distance for distance, _ in apart), [what for _, what in apart if what]
        is_wrong |= most > BOUND or bool(wrong)
        line = f"{task}: {len(one[task])} items, {len(apart)} answers, at most {most:.1e} apart, {len(wrong)} others"
        sys.stdout.write("\n  ".join([line, *wrong[:5]]) + "\n")
    if is_wrong:
        sys.stdout.write("the runs differ, or have different tasks\n")
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
