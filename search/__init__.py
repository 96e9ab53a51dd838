"""What to try: enumerates strategies, scores them with `cost_models`, refines with Optuna, ranks and explains."""

from search.problem import SearchProblem
from search.result import Progress, SearchResult, Trial
from search.run import run_search

__all__ = ["Progress", "SearchProblem", "SearchResult", "Trial", "run_search"]
