"""How the processes of a plan find each other: `torchrun` on each node, and a Slurm script that starts it on all.

Ranks have to lie as the plan was priced, tensor ranks innermost: consecutive on a node, nodes of one NVLink domain in a
row. So nodes are numbered by whoever starts them (`--node-rank`), and do not meet in order of arrival.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from search.launch.job import LaunchFile, LaunchJob

MASTER_PORT: Final = 29500
"""torchrun's own default."""
SLURM_PATH: Final = "train.sbatch"


def torchrun(job: LaunchJob, script_and_args: Sequence[str]) -> str:
    """The command of one node, an option a line.

    Args:
        job: One node: complete as it stands. Several: MASTER_ADDR, MASTER_PORT and NODE_RANK come from the environment.
        script_and_args: Words, not yet quoted; a word that begins with `$` is a shell variable and stays one.
    """
    words = ["torchrun", *_nodes(job), "--nproc-per-node", str(job.cluster.gpus_per_node)]
    return continued([*words, *script_and_args])


def _nodes(job: LaunchJob) -> list[str]:
    if job.cluster.nodes == 1:
        return ["--standalone"]
    places = ["--node-rank", "$NODE_RANK", "--master-addr", "$MASTER_ADDR", "--master-port", "$MASTER_PORT"]
    return ["--nnodes", str(job.cluster.nodes), *places]


def continued(words: Sequence[str]) -> str:
    """Words of a command, quoted for the shell, each option on a line of its own together with its values."""
    lines: list[list[str]] = [[]]
    for position, word in enumerate(words):
        if position and (word.startswith("--") or word.endswith(".py")):
            lines.append([])
        lines[-1].append(quoted(word))
    return " \\\n    ".join(" ".join(line) for line in lines)


def quoted(word: str) -> str:
    """One word for the shell; `$NAME` and `${NAME:?why}` stay variables."""
    return f'"{word}"' if word.startswith("$") else shlex.quote(word)


def exports(variables: Mapping[str, str]) -> str:
    """A line for each environment variable."""
    return "".join(f"export {name}={quoted(value)}\n" for name, value in variables.items())


def start(job: LaunchJob, command: str) -> str:
    """What to type: `command` itself on one node, the Slurm script where there are several."""
    return command if job.cluster.nodes == 1 else f"sbatch {SLURM_PATH}"


def by_hand(job: LaunchJob, command: str) -> tuple[str, ...]:
    """How to start several nodes without Slurm, for the notes of the launch files."""
    if job.cluster.nodes == 1:
        return ()
    last = job.cluster.nodes - 1
    return (
        f"Without Slurm: type `{command}` on every node, with NODE_RANK from 0 to {last}, MASTER_ADDR the address of "
        f"the first node and MASTER_PORT a free port of it ({MASTER_PORT}).",
    )


def slurm_script(job: LaunchJob, command: str, variables: Mapping[str, str]) -> LaunchFile:
    """`command`, which may have several lines, once on each node. A node of an NVL72 rack is a tray with four GPUs.

    Source: Slurm sbatch and srun manuals; `--segment` (block topology) asks for nodes that share an NVLink domain, as
    NVIDIA/Megatron-LM asks for on GB200.
    """
    directives = "".join(f"#SBATCH {line}\n" for line in _directives(job))
    content = (
        f"#!/bin/bash\n{directives}set -euo pipefail\n\n{exports(variables)}"
        'MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"\n'
        f"export MASTER_ADDR\nexport MASTER_PORT={MASTER_PORT}\n\n"
        "# Read by each node's own shell, which knows its number.\n"
        "read -r -d '' ON_EACH_NODE <<'COMMAND' || true\n"
        'export NODE_RANK="$SLURM_NODEID"\n'
        f"{command}\n"
        'COMMAND\nsrun --kill-on-bad-exit=1 bash -c "$ON_EACH_NODE"\n'
    )
    return LaunchFile(SLURM_PATH, content)


def _directives(job: LaunchJob) -> list[str]:
    cluster = job.cluster
    lines = [
        "--job-name=paraplan",
        f"--nodes={cluster.nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={cluster.gpus_per_node}",
        "--exclusive",
        "--mem=0",
    ]
    if cluster.host is not None:
        lines.append(f"--cpus-per-task={cluster.host.cpu_cores}")
    segment = cluster.nvlink_domain_gpus // cluster.gpus_per_node
    if segment > 1 and cluster.nodes % segment == 0:
        lines.append(f"--segment={segment}")
    return lines
