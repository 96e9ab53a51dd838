"""Bytes that a forward pass leaves behind for its backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Left:
    """After a forward pass, each storage whole and once; parameters, buffers and their copies left out."""

    alive: int
    """Bytes of storages that outlive the forward pass, whoever holds them (a checkpoint's inputs too)."""
    hooked: int
    """Bytes of storages that went through `torch.autograd.graph.saved_tensors_hooks`."""


@dataclass
class _Storages(TorchDispatchMode):
    """Remembers every storage that an operator makes, without keeping it alive."""

    made: dict[int, tuple[StorageWeakRef, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self.made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return result


def left_by(model: nn.Module, forward: Callable[[], Any], weight_copies: Callable[[], Iterable[int]] = tuple) -> Left:
    """Run `forward` and count what it leaves; `weight_copies` names storages that are cast weights."""
    lasting = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage
        return tensor

    with _Storages() as storages:
        result = forward()
    lasting |= set(weight_copies())
    alive = sum(
        size for key, (reference, size) in storages.made.items() if key not in lasting and not reference.expired()
    )
    del result
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    lasting |= set(weight_copies())
    hooked = sum(storage.nbytes() for key, storage in saved.items() if key not in lasting)
    return Left(alive, hooked)


def by_one_layer(fewer: Left, more: Left) -> Left:
    """What the additional layer of the larger of two models leaves."""
    return Left(more.alive - fewer.alive, more.hooked - fewer.hooked)
