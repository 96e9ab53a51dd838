"""Who holds the memory of a moment: bytes by allocation site, and by kind.

A site is the user's own frames of a stack, innermost first, with the library frames between folded into one: the
innermost Python call of a library, which names the operation. Kinds are read from what the innermost frames are, up to
the first of the user's: an outer frame of FSDP, say, is around every activation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from app.memory_snapshots.refusal import SnapshotRefused
from app.memory_snapshots.snapshot import Frames
from app.memory_snapshots.timeline import Live

USER_FRAMES: Final = 4
"""Of a site: enough to tell two calls of one layer apart, few enough for the layers of a model to fall together."""
LONGEST_TEXT: Final = 200
KINDS: Final = ("buckets", "logits", "optimizer", "backward", "parameters", "activations", "other", "unrecorded")
_LIBRARIES: Final = ("site-packages/", "dist-packages/", "/torch/", "/lib/python", "<frozen", "torchinductor_")
_MODULE_CALL: Final = "torch/nn/modules/module.py"
_BUCKETS: Final = (
    "torch/distributed/fsdp/",
    "param_and_grad_buffer.py",
    "deepspeed/runtime/zero/",
    "c10d::reducer",
    "torch/nn/parallel/distributed.py:_ddp_init_helper",
    "torch/distributed/algorithms/ddp_comm_hooks/",
)
"""FSDP's gathered and reduced groups, Megatron's and DeepSpeed's buffers, the buckets of DDP."""
_LOGITS: Final = ("cross_entropy", "crossentropy", "nll_loss", "log_softmax", "lm_head", "loss")
_OPTIMIZER: Final = ("torch/optim/", "/optimizers/", "/optimizer/", "optimizer.py")
_BACKWARD: Final = (
    "torch/autograd/__init__.py",
    "torch/autograd/graph.py:_engine_run_backward",
    "torch::autograd::engine",
)
_PARAMETERS: Final = (
    "module.py:_apply",
    "module.py:to",
    "torch/nn/init.py",
    "reset_parameters",
    "from_pretrained",
    "load_state_dict",
    ":__init__",
)
_FORWARD: Final = (_MODULE_CALL, ":forward", "torch/nn/functional.py")


class _Frame(NamedTuple):
    label: str
    text: str
    """File and function in lower case, of a library with its path: what kinds are read from."""
    native: bool
    library: bool


@dataclass(frozen=True)
class Site:
    """Blocks that were allocated at one place."""

    kind: str
    frames: tuple[str, ...]
    """`file:line:function`, innermost first: the library's innermost call, then the user's; empty where unrecorded."""
    bytes: int
    blocks: int


def sites(live: Iterable[Live]) -> list[Site]:
    """All allocation sites, the one with most bytes first."""
    known: dict[int, _Frame] = {}
    held: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(lambda: [0, 0])
    for block in live:
        entry = held[_site(block.frames, known)]
        entry[0] += block.size
        entry[1] += 1
    found = [Site(kind, frames, size, count) for (kind, frames), (size, count) in held.items()]
    return sorted(found, key=lambda site: (-site.bytes, site.frames))


def _site(stack: Frames | None, known: dict[int, _Frame]) -> tuple[str, tuple[str, ...]]:
    if stack is None:
        return "unrecorded", ()
    frames = [known.get(id(raw)) or known.setdefault(id(raw), _frame(raw)) for raw in stack]
    python = [frame for frame in frames if not frame.native]
    user = [frame.label for frame in python if not frame.library][:USER_FRAMES]
    library = [frame.label for frame in python if frame.library and _MODULE_CALL not in frame.text]
    # The innermost call of a library is the operation; a stack without frames of the user's is told by the library's.
    shown = ([library[0]] if library and python[0].library else []) + user if user else library[: USER_FRAMES + 1]
    return _kind(frames), tuple(shown or [frame.label for frame in frames[: USER_FRAMES + 1]])


def _kind(frames: list[_Frame]) -> str:
    inner: list[str] = []
    for frame in frames:
        if _MODULE_CALL in frame.text:
            break
        inner.append(frame.text)
        if not frame.native and not frame.library:
            break
    texts = [frame.text for frame in frames]
    for kind, where, marks in (
        ("optimizer", texts, _OPTIMIZER),
        ("buckets", inner, _BUCKETS),
        ("logits", inner, _LOGITS),
        ("backward", texts, _BACKWARD),
        ("parameters", inner, _PARAMETERS),
        ("activations", texts, _FORWARD),
    ):
        if any(mark in text for text in where for mark in marks):
            return kind
    # Module.to and Module.cuda of the whole model go through the file that also calls forward.
    return "parameters" if any(mark in text for text in texts for mark in _PARAMETERS) else "other"


def _frame(raw: object) -> _Frame:
    if type(raw) is not dict:
        raise SnapshotRefused("not_a_snapshot", "a frame of a stack is not a dictionary")
    path, name, line = raw.get("filename"), raw.get("name"), raw.get("line")
    if type(path) is not str or type(name) is not str or type(line) is not int:
        raise SnapshotRefused("not_a_snapshot", "a frame of a stack lacks its filename, name or line")
    file = path.rpartition("/")[2]
    library = any(part in path for part in _LIBRARIES)
    # Python's own pseudo-files (<stdin>, a notebook's cell) are in brackets; whatever else has no .py is compiled.
    native = not path.endswith(".py") and not path.startswith("<")
    text = f"{path if library or native else file}:{name}".lower()
    return _Frame(f"{file}:{line}:{name}"[:LONGEST_TEXT], text[-4 * LONGEST_TEXT :], native, library)
