"""What a PyTorch memory snapshot (`torch.cuda.memory._dump_snapshot`) tells: peaks, fragmentation, sites, advice.

A snapshot is a pickle, so it is read in three steps, each of which alone would do: a list of opcodes that only plain
containers, text and numbers need (`opcodes`), an unpickler that finds no class (`plain_pickle`), and a process of its
own with a limit on memory and time (`isolated`). The rest is arithmetic on plain values.

SnapshotRefused   the file is not such a pickle, or not a snapshot, or too large to be read
"""

from app.memory_snapshots.isolated import inspect_snapshot
from app.memory_snapshots.refusal import SnapshotRefused

__all__ = ["SnapshotRefused", "inspect_snapshot"]
