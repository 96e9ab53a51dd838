"""The service: HTTP API, persistence, background jobs and the command line."""
