"""The figures of `stats`: exact on small cases, near their expectation for shuffles, and readable at 80 columns."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.report.stats import COLUMNS, advise, render_stats, verdict
from shardtool.report.text import width
from shardtool.statistics.deviation import expected_tv, simulated_p99
from shardtool.statistics.metrics import (
    ShardColumns,
    Stats,
    StatsAccumulator,
    measure,
    neighbour_distance,
    source_ranks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.model import Int64Array
    from shardtool.statistics.deviation import Deviation

PAGE = Path(__file__).parents[1] / "docs" / "internals" / "shuffle-quality.md"


def shards_of(
    order: Sequence[int] | Int64Array,
    num_shards: int,
    *,
    labels: Int64Array | None = None,
    sizes: Int64Array | None = None,
    splits: Sequence[str] = ("train",),
    overhead: int = 1024,
) -> Iterator[ShardColumns]:
    """The samples in `order`, cut evenly; each has a jpg, those at even source positions a 3-byte cls too."""
    rows_all = np.asarray(order, np.int64)
    for k, rows in enumerate(np.array_split(rows_all, num_shards)):
        jpg = np.full(len(rows), 1000, np.int64) if sizes is None else sizes[rows]
        has_cls = rows % 2 == 0
        yield ShardColumns(
            index=k,
            split=splits[k % len(splits)],
            file_bytes=int(jpg.sum()) + 3 * int(has_cls.sum()) + overhead * len(rows),
            payload_bytes=int(jpg.sum()) + 3 * int(has_cls.sum()),
            sample_bytes=jpg + 3 * has_cls,
            part_names=("jpg", "cls"),
            part_ids=np.concatenate([np.zeros(len(rows), np.int16), np.ones(int(has_cls.sum()), np.int16)]),
            part_sizes=np.concatenate([jpg, np.full(int(has_cls.sum()), 3, np.int64)]),
            labels=None if labels is None else labels[rows].astype(np.int32),
            keys=pa.array([b"k/%09d" % row for row in rows.tolist()], pa.binary()),
        )


def permutation(num_samples: int, seed: int = 0) -> Int64Array:
    return np.random.RandomState(seed).permutation(num_samples).astype(np.int64)


def of(found: Deviation | None) -> Deviation:
    assert found is not None
    return found


def brute_force_tv(counts: Sequence[int], num_drawn: int) -> list[float]:
    """The distance of every possible draw."""
    population = [kind for kind, count in enumerate(counts) for _ in range(count)]
    shares = np.array(counts) / len(population)
    return [
        float(np.abs(np.bincount(draw, minlength=len(counts)) / num_drawn - shares).sum() / 2)
        for draw in itertools.combinations(population, num_drawn)
    ]


# order


def test_identity_is_at_distance_one_step_and_reversal_too() -> None:
    ranks = np.arange(1000)

    assert neighbour_distance(ranks) == pytest.approx(3 / 1001)
    assert neighbour_distance(ranks[::-1].copy()) == pytest.approx(3 / 1001)


def test_neighbour_distance_over_all_permutations_averages_to_one() -> None:
    found = [neighbour_distance(np.array(order)) for order in itertools.permutations(range(6))]

    assert np.mean([value for value in found if value is not None]) == pytest.approx(1.0)


def test_neighbour_distance_in_chunks_equals_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = permutation(1000)
    whole = neighbour_distance(ranks)

    monkeypatch.setattr("shardtool.statistics.metrics._PAIRS", 7)

    assert neighbour_distance(ranks) == whole


@pytest.mark.parametrize("seed", range(5))
def test_uniform_permutation_is_called_a_uniform_shuffle(seed: int) -> None:
    stats = measure(shards_of(permutation(20_000, seed), 20))

    assert stats.shuffle.neighbour_distance == pytest.approx(1.0, abs=5 * (0.4 / 20_000) ** 0.5)
    blocks = of(stats.shuffle.source_block_tv)
    assert blocks.median == pytest.approx(blocks.expected, rel=0.1)
    assert blocks.expected < blocks.p99
    assert verdict(stats.shuffle) == "like a uniform shuffle"


def test_source_order_is_called_by_its_name() -> None:
    stats = measure(shards_of(range(20_000), 20))

    assert stats.shuffle.neighbour_distance == pytest.approx(0.0, abs=0.001)
    assert of(stats.shuffle.source_block_tv).median > 0.9
    assert verdict(stats.shuffle) == "source order"
    assert any("--shuffle global" in line for line in advise(stats))


def test_random_membership_in_source_order_is_told_from_a_shuffle() -> None:
    shards = [np.sort(rows) for rows in permutation(20_000).reshape(20, -1)]

    stats = measure(shards_of(np.concatenate(shards), 20))

    assert of(stats.shuffle.source_block_tv).is_random
    assert verdict(stats.shuffle) == "shards hold random samples, their order follows the source"


def test_one_bad_shard_among_good_ones_is_named() -> None:
    order = permutation(20_000)
    order = np.concatenate([order[order >= 1000], np.arange(1000)])

    blocks = of(measure(shards_of(order, 20)).shuffle.source_block_tv)

    assert blocks.worst_shard == 19
    assert blocks.worst_tv == blocks.max > 0.9
    assert not blocks.is_random


def test_uniform_shuffles_are_not_accused() -> None:
    accused = []
    for seed in range(100):
        shuffle = measure(shards_of(permutation(2000, seed), 16, labels=np.arange(2000) // 200)).shuffle
        if not (shuffle.is_order_random and of(shuffle.source_block_tv).is_random and of(shuffle.label_tv).is_random):
            accused.append(seed)

    assert accused == []


def test_splits_are_judged_apart() -> None:
    """A validation folder at the end of the source is no fault of the shuffle."""
    order = np.concatenate([permutation(10_000), 10_000 + permutation(10_000, 1)])
    by_place = list(shards_of(order, 20))
    shards = [
        ShardColumns(**{**vars(shard), "split": "train" if shard.index < 10 else "validation"}) for shard in by_place
    ]

    assert verdict(measure(shards).shuffle) == "like a uniform shuffle"
    assert verdict(measure(by_place).shuffle) != "like a uniform shuffle"


def test_ranks_given_and_ranks_of_keys_agree() -> None:
    order = permutation(500)

    given_ranks = measure(shards_of(order, 5), ranks=order)
    of_keys = measure(shards_of(order, 5))

    assert given_ranks.document() == of_keys.document()


def test_source_ranks_follow_bytes_not_characters() -> None:
    keys = pa.array([b"\xff", b"a", b"", b"b/1", b"a\x00", b"\xc3\xa4", b"B"], pa.binary())

    ranks = source_ranks(keys)

    assert sorted(keys.to_pylist()) == [keys[row].as_py() for row in np.argsort(ranks)]
    assert source_ranks([keys[:3], keys[3:].cast(pa.large_binary())]).tolist() == ranks.tolist()


def test_wrong_number_of_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="3 source ranks for 10 samples"):
        measure(shards_of(range(10), 2), ranks=np.arange(3))


def test_columns_of_unequal_length_are_refused() -> None:
    shard = ShardColumns(4, "train", 10, 10, np.ones(3, np.int64), labels=np.zeros(2, np.int32))

    with pytest.raises(ValueError, match="shard 4: columns of 3 and 2 samples"):
        measure([shard])


# expectation


@pytest.mark.parametrize("counts", [(1, 1), (3, 2), (1, 4, 2), (2, 2, 2, 2), (7,), (6, 1)])
def test_expected_tv_is_the_mean_over_all_draws(counts: tuple[int, ...]) -> None:
    for num_drawn in range(1, sum(counts) + 1):
        expected = np.mean(brute_force_tv(counts, num_drawn))

        assert expected_tv(np.array(counts), num_drawn) == pytest.approx(expected, abs=1e-12)


def test_expected_tv_of_a_small_share_is_the_binomial_value() -> None:
    num_drawn, share = 50, 0.3
    binomial = sum(
        abs(k / num_drawn - share) * math.comb(num_drawn, k) * share**k * (1 - share) ** (num_drawn - k)
        for k in range(num_drawn + 1)
    )

    assert expected_tv(np.array([30_000_000, 70_000_000]), num_drawn) == pytest.approx(binomial, rel=1e-5)


def test_p99_is_the_percentile_of_all_draws() -> None:
    exact = np.quantile(brute_force_tv((6, 6, 6), 6), 0.99, method="inverted_cdf")

    assert simulated_p99(np.array([6, 6, 6]), 6) == pytest.approx(exact, abs=1 / 6 + 1e-9)


def test_p99_is_the_same_every_time() -> None:
    counts = np.full(64, 500)

    assert simulated_p99(counts, 1000) == simulated_p99(counts, 1000)


@pytest.mark.parametrize("counts", [np.full(5000, 3), np.array([2 * 10**9, 10**9])])
def test_p99_with_very_many_classes_or_samples_lies_above_the_mean(counts: Int64Array) -> None:
    expected = expected_tv(counts, 1000)

    assert expected < simulated_p99(counts, 1000) < 4 * expected


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(1, 12), st.integers(0, 3))
def test_figures_stay_in_their_bounds(sizes: list[int], num_shards: int, num_labels: int) -> None:
    rng = np.random.RandomState(len(sizes))
    labels = rng.randint(-1, num_labels, size=len(sizes)) if num_labels else None

    stats = measure(shards_of(permutation(len(sizes)), num_shards, labels=labels, sizes=np.array(sizes, np.int64)))

    for found in (stats.shuffle.source_block_tv, stats.shuffle.label_tv):
        if found is not None:
            assert 0 <= found.median <= found.max <= 1
            assert 0 <= found.expected <= found.p99 + 1e-9 <= 1 + 1e-9
    assert stats.shuffle.neighbour_distance is None or 0 < stats.shuffle.neighbour_distance < 3
    assert sum(stats.sample_bytes.log2_counts) + stats.sample_bytes.zero == stats.samples
    assert all(width(line) <= COLUMNS for line in render_stats(stats).splitlines())
    json.dumps(stats.document())


# labels


def test_stratified_layout_is_closer_to_the_whole_than_a_shuffle() -> None:
    labels = np.arange(20_000) // 1000
    stratified = np.arange(20_000).reshape(20, 20, 50).transpose(1, 0, 2).ravel()  # 50 of each class a shard

    tv = of(measure(shards_of(stratified, 20, labels=labels)).shuffle.label_tv)

    assert tv.max == pytest.approx(0.0, abs=1e-9)
    assert tv.expected > 0.03
    assert tv.is_random


def test_shuffled_labels_are_near_their_expectation() -> None:
    labels = np.arange(20_000) // 100

    stats = measure(shards_of(permutation(20_000), 20, labels=labels), label_names=[f"c{k}" for k in range(200)])

    tv = of(stats.shuffle.label_tv)
    assert tv.median == pytest.approx(tv.expected, rel=0.1)
    assert stats.labels is not None
    assert stats.labels.counts["c7"] == 100
    assert stats.labels.per_shard == pytest.approx(stats.labels.per_shard_expected, abs=1.5)


def test_class_sorted_membership_is_advised_to_be_stratified() -> None:
    """Source blocks are random here, the labels are not: they follow no order of the keys."""
    order = permutation(20_000)
    labels = np.empty(20_000, np.int64)
    labels[order] = np.arange(20_000) // 1000

    stats = measure(shards_of(order, 20, labels=labels))

    assert of(stats.shuffle.source_block_tv).is_random
    assert of(stats.shuffle.label_tv).median == pytest.approx(0.95)
    assert any("--stratify label" in line for line in advise(stats))


def test_label_tv_by_hand() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1, 1, -1])

    stats = measure(shards_of(range(8), 2, labels=labels))

    tv = of(stats.shuffle.label_tv)
    assert tv.max == pytest.approx(3 / 7)  # the second half holds class 1 alone
    assert tv.median == pytest.approx(((3 / 4 - 3 / 7) + 3 / 7) / 2)  # the first holds 3 of class 0, 1 of class 1
    assert stats.labels is not None
    assert stats.labels.unlabelled == 1
    assert stats.labels.counts == {"0": 3, "1": 4}


# sizes and parts


@settings(deadline=None)
@given(st.lists(st.integers(0, 1 << 62), min_size=1, max_size=50))
def test_size_quantiles_are_within_a_fifth_of_a_percent(sizes: list[int]) -> None:
    columns = ShardColumns(0, "train", 0, 0, np.array([size // len(sizes) for size in sizes], np.int64))

    found = measure([columns]).sample_bytes

    ordered = sorted(columns.sample_bytes.tolist())
    for share, value in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
        exact = ordered[max(1, math.ceil(share * len(ordered))) - 1]
        assert value == pytest.approx(exact, rel=0.002, abs=0.5)
    assert (found.min, found.max) == (ordered[0], ordered[-1])
    assert found.mean == pytest.approx(sum(ordered) / len(ordered))


def test_sizes_are_counted_by_octave() -> None:
    columns = ShardColumns(0, "train", 0, 0, np.array([0, 1, 2, 3, 4, 1023, 1024], np.int64))

    found = measure([columns]).sample_bytes

    assert (found.zero, found.log2_first) == (1, 0)
    assert found.log2_counts == (1, 2, 1, 0, 0, 0, 0, 0, 0, 1, 1)


def test_parts_are_added_over_shards() -> None:
    stats = measure(shards_of(range(10), 3, sizes=np.arange(10, dtype=np.int64) * 10))

    parts = stats.document()["parts"]
    assert parts["jpg"] == {"samples": 10, "bytes": 450, "min": 0, "max": 90}
    assert parts["cls"] == {"samples": 5, "bytes": 15, "min": 3, "max": 3}


def test_fill_and_totals_by_hand() -> None:
    shards = [ShardColumns(k, "train", size, size - 10, np.ones(3, np.int64)) for k, size in enumerate((50, 80, 100))]

    found = measure(shards, shard_size=100).document()

    assert found["fill"] == {"min": 0.5, "median": 0.8, "max": 1.0}
    assert found["samples_per_shard"] == {"min": 3.0, "median": 3.0, "max": 3.0}
    assert (found["bytes"], found["payload_bytes"], found["overhead_bytes"]) == (230, 200, 30)


def test_largest_sample_is_named_with_a_key_that_is_not_text() -> None:
    columns = ShardColumns(3, "train", 9, 9, np.array([1, 8], np.int64), keys=pa.array([b"a", b"caf\xe9"], pa.binary()))

    found = measure([columns]).document()["sample_bytes"]

    assert found["largest_shard"] == 3
    assert found["largest_key"] == {"key": "caf\\xe9", "key_b64": "Y2Fm6Q=="}


# ends


def test_empty_data_set_has_figures_and_a_text() -> None:
    stats = measure([])

    document = json.loads(json.dumps(stats.document()))
    assert document["samples"] == document["shards"] == 0
    assert document["shuffle"]["neighbour_distance"] is None
    assert document["labels"] is None
    assert render_stats(stats) == "samples   0 samples in 0 shards   payload 0 B   files 0 B"


def test_one_sample_is_judged_as_no_worse_than_random() -> None:
    stats = measure(shards_of([0], 1, labels=np.array([0])))

    assert stats.shuffle.neighbour_distance is None
    assert of(stats.shuffle.source_block_tv).max == 0
    assert verdict(stats.shuffle) == ""
    assert "1 sample in 1 shard" in render_stats(stats)


def test_single_shard_expects_no_distance_at_all() -> None:
    blocks = of(measure(shards_of(permutation(1000), 1)).shuffle.source_block_tv)

    assert blocks.median == pytest.approx(0, abs=1e-9)
    assert blocks.expected == pytest.approx(0, abs=1e-9)


def test_empty_shard_of_a_foreign_data_set_is_left_out_of_the_distance() -> None:
    shards = [*shards_of(permutation(100), 2), ShardColumns(2, "train", 1024, 0, np.empty(0, np.int64))]

    stats = measure(shards, ranks=permutation(100))

    assert stats.shards == 3
    assert of(stats.shuffle.source_block_tv).shards == 2


def test_data_set_without_keys_is_not_judged() -> None:
    stats = measure([ShardColumns(0, "train", 10, 10, np.ones(4, np.int64))])

    assert stats.shuffle.source_block_tv is None
    assert "not judged: the shards have no keys" in render_stats(stats)


def test_shards_may_be_added_one_at_a_time() -> None:
    total = StatsAccumulator()
    for shard in shards_of(permutation(100), 4):
        total.add(shard)

    assert (
        total.finish(shard_size=5000).document() == measure(shards_of(permutation(100), 4), shard_size=5000).document()
    )


# text


def awkward() -> Stats:
    """Every line at its longest: sorted, unbalanced, oversized, ragged, with wide and hostile names."""
    names = [f"{'部分' * 20}{k}" for k in range(12)]
    shards = []
    for k in range(1200):
        count = 50 + 40 * (k % 2)
        sizes = np.full(count, 100 + k, np.int64)
        shards.append(
            ShardColumns(
                k, "train", 3 * int(sizes.sum()), int(sizes.sum()), sizes,
                names, np.repeat(np.arange(12), 3), np.ones(36, np.int64), np.full(count, k // 100, np.int32),
                pa.array([b"%06d\x1b[31m" % (100 * k + row) + "鍵".encode() * 90 for row in range(count)], pa.binary()),
            )
        )  # fmt: skip
    return measure(shards, shard_size=20_000)


@pytest.mark.parametrize("ascii_only", [False, True])
def test_text_fits_80_columns_whatever_the_names(ascii_only: bool) -> None:
    text = render_stats(awkward(), heading="x" * 300, ascii_only=ascii_only)

    # An escape takes more columns than the character it stands for, so only the Unicode form is held to the width.
    assert ascii_only or max(width(line) for line in text.splitlines()) <= COLUMNS
    assert "\x1b" not in text
    assert text.isascii() or not ascii_only


def test_every_advice_ends_with_what_to_type() -> None:
    advice = advise(awkward())

    assert len(advice) >= 4
    for line in advice:
        assert re.search(r": (--[a-z-]+ \S+|shardtool plan SRC OUT)$", line), line


def test_sound_data_set_gets_no_advice() -> None:
    shards = [
        ShardColumns(**{**vars(shard), "part_names": (), "part_ids": None, "part_sizes": None})
        for shard in shards_of(permutation(20_000), 20, labels=np.arange(20_000) % 10, overhead=1)
    ]

    assert advise(measure(shards)) == []


def test_every_figure_stands_beside_its_expectation() -> None:
    text = render_stats(measure(shards_of(permutation(5000), 5, labels=np.arange(5000) // 500)))

    assert "(random 1.000)" in text
    assert len(re.findall(r"TV \d\.\d{3} \(random \d\.\d{3}, p99 \d\.\d{3}\)", text)) == 2
    assert "10 a shard (random 10)" in text


def test_document_holds_the_fields_of_the_contract() -> None:
    document: dict[str, Any] = measure(shards_of(permutation(200), 4, labels=np.arange(200) % 3)).document()

    assert document["schema"] == "shardtool/stats/1"
    assert {
        "samples", "shards", "bytes", "payload_bytes", "overhead_bytes", "fill", "samples_per_shard", "sample_bytes",
        "parts", "labels", "shuffle",
    } <= document.keys()  # fmt: skip
    assert {"min", "median", "max"} <= document["fill"].keys()
    assert {"neighbour_distance", "source_block_tv", "label_tv"} <= document["shuffle"].keys()
    assert {"median", "expected", "p99"} <= document["shuffle"]["source_block_tv"].keys()


def test_table_of_the_page_is_what_its_block_prints() -> None:
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    out = io.StringIO()

    with contextlib.redirect_stdout(out):
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), {})

    rows = out.getvalue().splitlines()
    assert len(rows) == 6
    assert [row for row in rows if row not in page] == []
