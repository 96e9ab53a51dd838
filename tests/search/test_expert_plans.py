"""Production recipes are valid and fit, and a search that was not told of them finds plans that are as fast."""

from __future__ import annotations

import pytest

from benchmarks.expert_plans import RECIPES, Recipe


@pytest.fixture(params=RECIPES, ids=lambda recipe: recipe.name)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    found: Recipe = request.param
    return found


def test_a_recipe_is_valid_and_fits(recipe: Recipe) -> None:
    answer = recipe.answer()
    assert answer["violations"] == []
    assert answer["fits"]


def test_the_first_plan_fits_and_is_as_fast(recipe: Recipe) -> None:
    first = recipe.first_plan()
    assert first["fits"]
    assert first["time"]["step_seconds"] <= recipe.answer()["time"]["step_seconds"]
