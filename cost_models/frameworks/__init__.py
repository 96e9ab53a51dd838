"""The six frameworks, in the order of `strategy.FRAMEWORKS`."""

from typing import Final

from cost_models.framework import Framework
from cost_models.frameworks.ddp import DDP
from cost_models.frameworks.deepspeed import DEEPSPEED
from cost_models.frameworks.fsdp1 import FSDP1
from cost_models.frameworks.fsdp2 import FSDP2
from cost_models.frameworks.megatron_lm import MEGATRON_LM
from cost_models.frameworks.nanotron import NANOTRON

FRAMEWORKS: Final[tuple[Framework, ...]] = (MEGATRON_LM, DEEPSPEED, FSDP2, FSDP1, DDP, NANOTRON)


def framework_named(name: str) -> Framework:
    """The framework of that name."""
    return next(framework for framework in FRAMEWORKS if framework.name == name)
