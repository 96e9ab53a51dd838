"""Fixtures that every test may use."""

pytest_plugins = ["tests.databases", "tests.http_service"]
