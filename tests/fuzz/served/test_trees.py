"""Changed values are JSON within a bound, the same from the same seed, and seldom what they were."""

import json
from random import Random

from tests.fuzz.served.schemas import schema
from tests.fuzz.served.trees import MAX_CHARS, changed


def test_changed_values_are_json_within_the_bound() -> None:
    others = [schema(Random(place)) for place in range(10)]
    num_changed, sizes = 0, []
    for seed in range(400):
        value = schema(Random(seed))
        before = json.dumps(value)
        found = json.dumps(changed(Random(seed), value, others))
        assert found == json.dumps(changed(Random(seed), value, others)) and json.dumps(value) == before
        num_changed += found != before
        sizes.append(len(found))
    assert num_changed > 300 and max(sizes) <= MAX_CHARS and max(sizes) > MAX_CHARS / 4
