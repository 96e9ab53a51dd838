"""Fixtures that every test may use."""

from hypothesis import settings

pytest_plugins = ["tests.databases", "tests.http_service"]

# A slow machine is no failure: properties have no time limit.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
