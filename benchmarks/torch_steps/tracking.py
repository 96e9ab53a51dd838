"""A step under fake tensors, a fake process group and PyTorch's own MemTracker; the moment of the peak besides."""

from __future__ import annotations

import gc
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.hooks import RemovableHandle

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Measured:
    """Peak of a step in bytes, what it is made of, and when it is."""

    peak_bytes: int
    moment: str
    """`forward`, `loss` (head and loss, both ways), `backward` or `optimizer`."""
    split: dict[str, int]
    before_bytes: int
    """Before the step: what lasts from one to the next."""


class Tracker(MemTracker):
    """Notes besides what ran when the peak rose. (FSDPMemTracker takes no groups of several modules.)"""

    phase = "forward"
    moment = "forward"

    def _update_peak_stats(self, peak_state: Any) -> None:
        before = self._peak_mem.get(_CPU, 0)
        super()._update_peak_stats(peak_state)
        if self._peak_mem.get(_CPU, 0) > before:
            self.moment = self.phase

    def _track_module_params_and_buffers(self, module: nn.Module, install_grad_hooks: bool = True) -> tuple[int, int]:
        # Frozen parameters take no hooks.
        for parameter in module.parameters():
            if not parameter.requires_grad:
                none = RemovableHandle(OrderedDict())
                self._param_to_grad_hook_handles.setdefault(parameter, (none, none))
        tracked: tuple[int, int] = super()._track_module_params_and_buffers(module, install_grad_hooks)
        return tracked

    def leave_head(self, _: nn.Module, __: Any, output: Any) -> None:
        """A forward hook of the last block: the head and the loss are on."""
        hidden = output[0] if isinstance(output, tuple) else output
        if hidden.requires_grad:
            self.phase = "loss"
            hidden.register_hook(lambda _: setattr(self, "phase", "backward"))

    def restart(self) -> None:
        """Forget the peak so far."""
        self._peak_mem_snap = self.get_tracker_snapshot("current")
        self._peak_mem = {device: int(kinds["Total"]) for device, kinds in self._peak_mem_snap.items()}


@contextmanager
def fake_ranks(
    shape: tuple[int, ...], rank: int = 0, names: tuple[str, ...] = ("replicate", "shard")
) -> Iterator[DeviceMesh]:
    """One rank of a mesh that does not communicate, with fake tensors; the last of `names` for its dimensions."""
    dist.init_process_group("fake", rank=rank, world_size=math.prod(shape), store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names[-len(shape) :])
        with FakeTensorMode():
            yield mesh
    finally:
        dist.destroy_process_group()


def measure(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Callable[[Tracker], None],
    buckets: Mapping[int, Tensor] | None = None,
) -> Measured:
    """The second step: the first has made the optimizer's states and `buckets`, which last besides.

    `step` sets the tracker's phase as it goes.
    """
    for _ in range(2):
        tracker = Tracker()
        tracker.track_external(model, optimizer, *(buckets or {}).values())
        with tracker:
            before = _total(tracker.get_tracker_snapshot("current"))
            step(tracker)
    return _measured(tracker, before)


def measure_whole(tracker: Tracker, step: Callable[[], None]) -> Measured:
    """The second step, where the tracker has seen all that lasts come."""
    step()
    gc.collect()  # graphs that refer to themselves, which a loop's collector gets to sooner or later
    tracker.restart()
    before = _total(tracker.get_tracker_snapshot("current"))
    step()
    return _measured(tracker, before)


def _measured(tracker: Tracker, before: int) -> Measured:
    snapshot = tracker.get_tracker_snapshot("peak")[_CPU]
    return Measured(
        peak_bytes=snapshot["Total"],
        moment=tracker.moment,
        split={getattr(kind, "value", kind): size for kind, size in snapshot.items() if size and kind != "Total"},
        before_bytes=before,
    )


def _total(snapshot: dict[torch.device, dict[Any, int]]) -> int:
    return snapshot.get(_CPU, {}).get("Total", 0)
