"""The numbers of the recipe hang together."""

import json

from models.train.draft import KINDS
from models.train.recipe import Recipe, Shape, config_json, generation_config_json
from models.train.train import STORY_FOLDER


def num_parameters(shape: Shape) -> int:
    attention = 2 * shape.hidden_size * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    norms = 2 * shape.hidden_size + 2 * shape.head_dim
    layer = attention + 3 * shape.hidden_size * shape.intermediate_size + norms
    return shape.vocab_size * shape.hidden_size + shape.num_layers * layer + shape.hidden_size


def test_weights_fit_the_size_limit() -> None:
    assert 2 * num_parameters(Shape()) < 3_850_000


def test_learning_rate_rises_holds_and_falls() -> None:
    recipe = Recipe()
    factors = [recipe.lr_factor(step) for step in range(recipe.num_steps)]
    peak = factors.index(max(factors))
    assert max(factors) == 1.0
    assert factors[:peak] == sorted(factors[:peak])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert 0 < factors[-1] < 0.1


def test_committed_configs_are_the_recipes() -> None:
    own = {"num_nextn_predict_layers": KINDS["mtp"].num_layers}  # its draft layers
    assert json.loads((STORY_FOLDER / "config.json").read_text()) == config_json(Shape()) | own
    assert json.loads((STORY_FOLDER / "generation_config.json").read_text()) == generation_config_json()
