"""The service: HTTP API, persistence, background jobs and the command line."""

__version__ = "0.1.0"
