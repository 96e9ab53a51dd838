"""Peak memory per pipeline stage, by what is alive: weights, gradients, states, activations, logits, buffers."""

from cost_models.memory.estimate import estimate_memory, memory_needs
from cost_models.memory.fit import Fit, fit, others_suffice

__all__ = ["Fit", "estimate_memory", "fit", "memory_needs", "others_suffice"]
