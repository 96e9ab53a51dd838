"""How far a token's experts are spread, when the router chooses them evenly.

Legend: E experts, k of them a token, in g of G groups of consecutive ones; D domains with E / D experts each.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

from cost_models.architecture import MixtureOfExperts


@lru_cache(maxsize=4096)
def domains_reached(mixture: MixtureOfExperts, domains: int) -> float:
    """Expected number of domains with at least one of a token's experts: D (1 - P(none of them in a given one)).

    A domain holds experts of one group or of several; of these, j are among the token's groups with the weights of a
    hypergeometric distribution, and the token's k experts are drawn from those of its g groups.
    """
    groups, chosen = mixture.groups, min(mixture.groups_per_token, mixture.groups)
    held = max(groups // domains, 1)
    experts_of_each = mixture.experts // max(groups, domains)
    pool = max(mixture.experts * chosen // groups, mixture.experts_per_token)
    missed = 0.0
    for among in range(max(0, chosen - groups + held), min(held, chosen) + 1):
        weight = comb(held, among) * comb(groups - held, chosen - among) / comb(groups, chosen)
        left = comb(pool - among * experts_of_each, mixture.experts_per_token)
        missed += weight * left / comb(pool, mixture.experts_per_token)
    return domains * (1 - missed)
