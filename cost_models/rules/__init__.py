"""What makes a strategy impossible (violations), and what makes it doubtful by its layout alone (warnings)."""

from cost_models.rules.abilities import recomputable_modules
from cost_models.rules.check import explain_violations, explain_warnings, placement_warnings, violations

__all__ = ["explain_violations", "explain_warnings", "placement_warnings", "recomputable_modules", "violations"]
