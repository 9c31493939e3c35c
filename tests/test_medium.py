"""Whether reads wait for a device, told by the clock and by how often the thread slept."""

from __future__ import annotations

import time

import pytest

from shardtool.sources.medium import JUDGED_BYTES, JUDGED_FILES, Mark, Medium

SLOW_S = 1e-3 * JUDGED_FILES


def noted(medium: Medium, num_files: int, num_bytes: int, seconds: float, waits: int) -> bool:
    medium.note(num_files, num_bytes, Mark(5.0, 7), Mark(5.0 + seconds, 7 + waits))
    return medium.is_cold


@pytest.mark.parametrize(
    ("seconds", "waits", "is_cold"),
    [(SLOW_S, JUDGED_FILES, True), (SLOW_S, 0, False), (1e-4, JUDGED_FILES, False), (SLOW_S, 2, True)],
    ids=["device", "busy processor", "memory", "few waits"],
)
def test_small_files(seconds: float, waits: int, is_cold: bool) -> None:
    assert noted(Medium(), JUDGED_FILES, 1000 * JUDGED_FILES, seconds, waits) is is_cold


def test_a_large_file_waits_once() -> None:
    assert noted(Medium(), 1, JUDGED_BYTES, 0.1, 1)
    assert not noted(Medium(), 1, JUDGED_BYTES, 0.1, 0)


def test_it_is_judged_by_enough_files_only_and_again_and_again() -> None:
    medium = Medium()
    assert not noted(medium, JUDGED_FILES - 1, 10, SLOW_S, JUDGED_FILES)
    assert noted(medium, 1, 10, SLOW_S, 1)
    assert not noted(medium, JUDGED_FILES, 10, 1e-4, 0)


def test_marks_count_the_sleep_of_this_thread() -> None:
    before = Mark.now()
    time.sleep(0.01)
    after = Mark.now()
    assert after.seconds - before.seconds >= 0.01
    assert after.waits > before.waits
