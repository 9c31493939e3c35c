"""What is left of the memory of a machine, a container, a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import make_tree

from shardtool.loading.available import MIN_BYTES, available_memory

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
MEMINFO = f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\nMemAvailable:   {32 << 20} kB\n"  # 32 GiB


def told(tmp_path: Path, membership: str, groups: dict[str, str]) -> int:
    make_tree(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": membership})
    make_tree(tmp_path / "cgroup", {"nothing": "", **groups})
    return available_memory(str(tmp_path / "proc"), str(tmp_path / "cgroup"))


def v2(group: str, limit: object, used: int, inactive: int = 0) -> dict[str, str]:
    return {
        f"{group}/memory.max": f"{limit}\n",
        f"{group}/memory.current": f"{used}\n",
        f"{group}/memory.stat": f"anon 1\ninactive_file {inactive}\nactive_file 7\n",
    }


def test_without_limits_it_is_what_the_machine_has_left(tmp_path: Path) -> None:
    assert told(tmp_path, "0::/\n", {}) == 32 * GIB
    assert told(tmp_path, "0::/job\n", v2("job", "max", 60 * GIB)) == 32 * GIB


def test_a_container_leaves_its_limit_less_what_is_used_and_cannot_give_way(tmp_path: Path) -> None:
    assert told(tmp_path, "0::/\n", v2(".", 8 * GIB, 5 * GIB, 2 * GIB)) == 5 * GIB


def test_the_tightest_group_around_the_process_counts(tmp_path: Path) -> None:
    groups = v2("slurm/job_1", 4 * GIB, 3 * GIB) | v2("slurm/job_1/step_0", "max", 2 * GIB) | v2("slurm", 9 * GIB, 0)
    assert told(tmp_path, "0::/slurm/job_1/step_0\n", groups) == 1 * GIB


def test_a_path_of_the_host_that_is_not_there_means_the_group_of_the_container(tmp_path: Path) -> None:
    assert told(tmp_path, "0::/docker/0123abc\n", v2(".", 8 * GIB, 1 * GIB)) == 7 * GIB


def test_groups_of_version_1_are_read_too(tmp_path: Path) -> None:
    groups = {
        "memory/job/memory.limit_in_bytes": f"{2 * GIB}\n",
        "memory/job/memory.usage_in_bytes": f"{GIB}\n",
        "memory/job/memory.stat": f"cache 1\ntotal_inactive_file {GIB // 2}\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.usage_in_bytes": f"{GIB}\n",
    }
    assert told(tmp_path, "5:cpu,cpuacct:/\n4:memory:/job\n0::/\n", groups) == GIB + GIB // 2


@pytest.mark.parametrize("used", [8 * GIB, 9 * GIB])
def test_a_group_that_is_full_still_leaves_a_little(tmp_path: Path, used: int) -> None:
    assert told(tmp_path, "0::/\n", v2(".", 8 * GIB, used)) == MIN_BYTES


def test_files_that_say_nothing_are_no_limit(tmp_path: Path) -> None:
    groups = {"memory.max": "many\n", "a/memory.max": "5\n"}  # no number; no usage beside it
    assert told(tmp_path, "nonsense\n0::/a\n", groups) == 32 * GIB


def test_a_system_without_proc_tells_its_memory(tmp_path: Path) -> None:
    assert available_memory(str(tmp_path / "no"), str(tmp_path / "no")) > MIN_BYTES
