"""Which node this is, of how many, with how many ranks: from options, else from what a launcher put into the
environment.

Pure: a mapping in, a `Node` out. Launchers differ in the names of their variables only, so they are a table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.assignment.placement import data_rank
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Node", "data_rank_here", "find_node"]


@dataclass(frozen=True)
class Node:
    """A node among those of a run."""

    node: int  # 0-based
    num_nodes: int
    local_ranks: int  # data ranks on each node
    found_by: str = ""  # the launcher that told; "" where only options did

    @property
    def world_size(self) -> int:
        """Data ranks of the run."""
        return self.num_nodes * self.local_ranks


@dataclass(frozen=True)
class _Told:
    """What a launcher says; None where it does not."""

    node: int | None = None
    num_nodes: int | None = None
    local_ranks: int | None = None


def find_node(
    environment: Mapping[str, str],
    *,
    node: int | None = None,
    num_nodes: int | None = None,
    local_ranks: int | None = None,
    world_size: int | None = None,
) -> Node:
    """The node that these options name; what they leave open comes from the launcher, else it is one node of one rank.

    Args:
        environment: such as `os.environ`.
        node: --node-rank.
        num_nodes: --num-nodes.
        local_ranks: --local-world-size.
        world_size: --world-size.

    Raises:
        UsageProblem: numbers that contradict one another, or a node without the number of nodes.
    """
    name, told = _launcher(environment)
    given = (node, num_nodes, local_ranks)
    node = told.node if node is None else node
    num_nodes = told.num_nodes if num_nodes is None else num_nodes
    if node is not None and num_nodes is None:
        raise UsageProblem(
            f"this is node {node}, but of how many" + (f" does not follow from {name}" if name else ""),
            hint="add --num-nodes N",
        )
    num_nodes = 1 if num_nodes is None else num_nodes
    if node is None and num_nodes > 1:
        raise UsageProblem(f"which of {num_nodes} nodes is this", hint="add --node-rank N, counted from 0")
    ranks = _local_ranks(world_size, num_nodes, local_ranks, told.local_ranks)
    found = Node(node or 0, num_nodes, ranks, name if None in given else "")
    if not 0 <= found.node < found.num_nodes:
        raise UsageProblem(
            f"there is no node {found.node} among {found.num_nodes}", hint="nodes count from 0: --node-rank"
        )
    return found


def data_rank_here(environment: Mapping[str, str], rank: int, world_size: int) -> int:
    """The data rank of the process with this global rank: local_rank * num_nodes + node, as stage and assign count.

    It is the global rank itself where no launcher tells nodes, or where what it tells is not of this very process and
    of nodes that all run as many ranks: then no two processes may take one number for different reasons.
    """
    for name, marker, read in LAUNCHERS:
        if marker in environment and name in PROCESSES:
            told, (own, local) = read(environment), PROCESSES[name]
            local_rank = _number(environment, local)
            if _number(environment, own) != rank or local_rank is None or told.node is None:
                return rank
            nodes, ranks = told.num_nodes or 0, told.local_ranks or 0
            is_even = nodes * ranks == world_size and told.node < nodes and local_rank < ranks
            return data_rank(local_rank, told.node, nodes) if is_even and _is_even(environment) else rank
    return rank


def _is_even(variables: Mapping[str, str]) -> bool:
    """Whether all nodes run as many tasks, as far as SLURM knows: `8(x4)`, not `8(x3),4`."""
    return "," not in variables.get("SLURM_TASKS_PER_NODE", "")


def _local_ranks(world_size: int | None, num_nodes: int, given: int | None, told: int | None) -> int:
    if world_size is None:
        return given or told or 1
    if world_size % num_nodes or (given and given * num_nodes != world_size):
        per_node = f" of {given} ranks" if given else ""
        raise UsageProblem(
            f"{world_size} ranks are not {num_nodes} nodes{per_node}",
            hint="give --num-nodes and --local-world-size; leave --world-size out",
        )
    return world_size // num_nodes


def _launcher(environment: Mapping[str, str]) -> tuple[str, _Told]:
    for name, marker, read in LAUNCHERS:
        if marker in environment:
            return name, read(environment)
    return "", _Told()


def _torchrun(variables: Mapping[str, str]) -> _Told:
    ranks, size = _number(variables, "LOCAL_WORLD_SIZE"), _number(variables, "WORLD_SIZE")
    nodes = _number(variables, "GROUP_WORLD_SIZE") or (size // ranks if ranks and size else None)
    return _Told(_number(variables, "GROUP_RANK"), nodes, ranks)


def _kubeflow(variables: Mapping[str, str]) -> _Told:
    """Names of the training operator; `PET_NNODES` may be a range `1:4`, of which the last counts."""
    nodes = variables.get("PET_NNODES", "").rpartition(":")[2]
    count = int(nodes) if nodes.isdecimal() else None
    return _Told(_number(variables, "PET_NODE_RANK"), count, _number(variables, "PET_NPROC_PER_NODE"))


def _open_mpi(variables: Mapping[str, str]) -> _Told:
    """Ranks fill one node after another, as `mpirun --map-by slot` has it."""
    rank, size = _number(variables, "OMPI_COMM_WORLD_RANK"), _number(variables, "OMPI_COMM_WORLD_SIZE")
    ranks = _number(variables, "OMPI_COMM_WORLD_LOCAL_SIZE")
    if not ranks or rank is None or not size:
        return _Told()
    return _Told(rank // ranks, -(-size // ranks), ranks)


def _slurm(variables: Mapping[str, str]) -> _Told:
    """One task a node starts as many ranks as it has accelerators, several tasks are the ranks."""
    nodes = _number(variables, "SLURM_NNODES") or _number(variables, "SLURM_JOB_NUM_NODES")
    tasks = re.match(r"\d+", variables.get("SLURM_NTASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE", ""))
    ranks = int(tasks[0]) if tasks else 1
    return _Told(_number(variables, "SLURM_NODEID"), nodes, ranks if ranks > 1 else _accelerators(variables))


def _accelerators(variables: Mapping[str, str]) -> int | None:
    return _number(variables, "SLURM_GPUS_ON_NODE")


def _indexed_job(variables: Mapping[str, str]) -> _Told:
    """Kubernetes tells a pod of an Indexed Job, and of a JobSet, its number, but not how many there are."""
    return _Told(_number(variables, "JOB_COMPLETION_INDEX"), _number(variables, "NNODES"), None)


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "")
    return int(text) if text.isdecimal() else None


LAUNCHERS: tuple[tuple[str, str, Callable[[Mapping[str, str]], _Told]], ...] = (  # innermost first
    ("torchrun", "GROUP_RANK", _torchrun),
    ("the training operator", "PET_NODE_RANK", _kubeflow),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", _open_mpi),
    ("SLURM", "SLURM_NODEID", _slurm),
    ("Kubernetes", "JOB_COMPLETION_INDEX", _indexed_job),
)
PROCESSES = {  # variables that tell a process its global and its local rank
    "torchrun": ("RANK", "LOCAL_RANK"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "SLURM": ("SLURM_PROCID", "SLURM_LOCALID"),
}
