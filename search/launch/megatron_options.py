"""Typed reading of Megatron-LM's options: each is understood, without meaning for a plan, or left over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from cost_models.errors import InvalidInput

LARGEST: Final = 2**31 - 1
_LAUNCHER: Final = frozenset(
    {"standalone", "nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "max-restarts", "log-dir"}
    | {"rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr", "role", "tee", "redirects", "module"}
)
"""Options of torchrun, which takes them with underscores too."""
INERT: Final = frozenset(
    f"--{name}"
    for name in (
        *("lr", "min-lr", "lr-decay-style", "lr-decay-iters", "lr-decay-samples", "lr-warmup-iters"),
        *("lr-warmup-fraction", "lr-warmup-samples", "weight-decay", "clip-grad", "adam-beta1", "adam-beta2"),
        *("adam-eps", "seed", "init-method-std", "loss-scale", "initial-loss-scale", "min-loss-scale"),
        *("loss-scale-window", "hysteresis", "muon-momentum", "data-path", "split", "data-cache-path", "mock-data"),
        *("train-data-path", "valid-data-path", "test-data-path", "num-workers", "dataloader-type", "tokenizer-type"),
        *("tokenizer-model", "vocab-file", "merge-file", "save", "load", "save-interval", "ckpt-format", "finetune"),
        *("no-load-optim", "no-load-rng", "no-save-optim", "no-save-rng", "async-save", "exit-interval"),
        *("exit-duration-in-mins", "eval-iters", "eval-interval", "log-interval", "log-throughput", "log-progress"),
        *("log-params-norm", "log-timers-to-tensorboard", "log-memory-to-tensorboard", "timing-log-level"),
        *("timing-log-option", "tensorboard-dir", "tensorboard-log-interval", "wandb-project", "wandb-exp-name"),
        *("wandb-save-dir", "log-validation-ppl-to-tensorboard", "distributed-backend", "manual-gc"),
        *("distributed-timeout-minutes", "manual-gc-interval", "use-mcore-models", "te-rng-tracker"),
        *("norm-epsilon", "rotary-base", "rotary-percent", "rotary-scaling-factor", "use-rope-scaling"),
        *("rope-scaling-factor", "rope-type", "mscale", "mscale-all-dim", "rotary-interleaved", "no-rope-fusion"),
        *("attention-softmax-in-fp32", "apply-layernorm-1p", "moe-aux-loss-coeff", "moe-z-loss-coeff"),
        *("moe-router-load-balancing-type", "moe-router-dtype", "moe-router-score-function", "moe-router-fusion"),
        *("moe-router-pre-softmax", "moe-router-num-groups", "moe-router-group-topk", "moe-permute-fusion"),
        *("moe-router-topk-scaling-factor", "moe-router-enable-expert-bias", "moe-router-bias-update-rate"),
        *("moe-grouped-gemm", "moe-router-padding-for-fp8", "no-check-for-nan-in-loss-and-grad"),
        *("no-create-attention-mask-in-dataloader", "init-model-with-meta-device", "fsdp-double-buffer"),
        *("cuda-graph-scope", "cuda-graph-warmup-steps", "overlap-cpu-optimizer-d2h-h2d", "fp4-recipe"),
        *("reuse-grad-buf-for-mxfp8-param-ag", "fp8-amax-history-len", "fp8-amax-compute-algo", "fp8-margin"),
        *("make-vocab-size-divisible-by", "microbatch-group-size-per-virtual-pipeline-stage"),
        *("activation-func-clamp-value", "glu-linear-offset", "eod-mask-loss", "reset-position-ids"),
    )
)
"""What changes neither memory nor time, or follows from what is read."""
_DISPATCHERS: Final = ("alltoall",)


class MegatronOptions:
    """The options of one command. A value that is still a shell variable is refused where it is needed."""

    def __init__(self, options: Mapping[str, tuple[str, ...]]) -> None:
        self._options = {_spelled(name): values for name, values in options.items()}
        self._read: set[str] = set()
        self._left: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._options

    def error(self, name: str, code: str, message: str) -> InvalidInput:
        """An option that breaks a rule."""
        return InvalidInput(("content", name), code, f"{name}: {message}")

    def flag(self, name: str) -> bool:
        """Whether it is there."""
        self._read.add(name)
        return name in self._options

    def texts(self, name: str) -> tuple[str, ...] | None:
        """All of its values; None: it is not there."""
        self._read.add(name)
        return self._options.get(name)

    def text(self, name: str, default: str) -> str:
        """Its value."""
        values = self.texts(name)
        if values is None:
            return default
        if not values:
            raise self.error(name, "missing", "it needs a value")
        return values[0] if len(set(values)) == 1 else " ".join(values)

    def choice(self, name: str, known: Collection[str], default: str) -> str:
        """One of the known values."""
        value = self.text(name, default)
        if value != default and value not in known:
            raise self.error(name, "unknown_value", f"must be one of {', '.join(known)}, not {_shown(value)}")
        return value

    def size(self, name: str, default: int, *, smallest: int = 1) -> int:
        """A whole number."""
        text = self.text(name, str(default))
        if not (text.isascii() and text.isdecimal() and len(text) < 11 and smallest <= int(text) <= LARGEST):
            if name in self._options:
                raise self.error(name, "not_a_size", f"must be a whole number from {smallest}, not {_shown(text)}")
            return default
        return int(text)

    def known_size(self, name: str) -> int | None:
        """A whole number; None: it is not there, or a shell variable."""
        return self.size(name, 1) if not self.text(name, "$").startswith("$") else None

    def number(self, name: str, default: float, *, largest: float = 1.0) -> float:
        """A number from 0."""
        text = self.text(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= largest:
            raise self.error(name, "not_a_number", f"must be a number from 0 to {largest:g}, not {_shown(text)}")
        return value

    def gpus(self) -> int | None:
        """As torchrun is told; None: it is not."""
        each = self.known_size("--nproc-per-node")
        nodes = 1 if self.flag("--standalone") else self.known_size("--nnodes")
        return None if each is None or nodes is None else each * nodes

    def leave(self, name: str) -> None:
        """An option whose value has no field."""
        self._left.add(name)

    def unmapped(self) -> tuple[str, ...]:
        """Options that no field stands for, in their order, with their values."""
        if self.text("--moe-token-dispatcher-type", "alltoall") not in _DISPATCHERS:
            self.leave("--moe-token-dispatcher-type")
        known = (self._read | INERT | {f"--{name}" for name in _LAUNCHER}) - self._left
        return tuple(" ".join((name, *values))[:200] for name, values in self._options.items() if name not in known)


def _spelled(name: str) -> str:
    dashed = name[2:].replace("_", "-")
    return f"--{dashed}" if dashed in _LAUNCHER else name


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
