"""Published figures of real training runs, each with its citation, as RunRecords of the contract.

One TOML file a source: its citation, what all its rows share, and tables that look like those of the source. Whoever
adds a source copies a small file, such as `llama-3-report.toml`; `make validate` prints how far the model is from it.
"""

from cost_models.published_runs.source import PublishedSource, published_runs, published_sources, read_source

__all__ = ["PublishedSource", "published_runs", "published_sources", "read_source"]
