"""TFRecord shards read by TensorBoard's reader, which checks both checksums, and parsed by protocol buffers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from helpers import pack, shard_paths
from hypothesis import given
from record_data import FEW, TREES, check_damage, made_tree, samples_of, tree_kinds, tree_of, verify_deep
from tensorboard.compat.tensorflow_stub import errors
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

from shardtool.formats import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

FIELD = descriptor_pb2.FieldDescriptorProto


def example_class() -> Any:
    """tf.Example, from its definition in tensorflow/core/example/{example,feature}.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, int, str]) -> Any:
        found = file.message_type.add(name=name)
        for label, number, kind, repeated, of in fields:
            found.field.add(name=label, number=number, type=kind, label=repeated, type_name=of or None)
        return found

    one, many, inner = FIELD.LABEL_OPTIONAL, FIELD.LABEL_REPEATED, FIELD.TYPE_MESSAGE
    message("BytesList", ("value", 1, FIELD.TYPE_BYTES, many, ""))
    message("FloatList", ("value", 1, FIELD.TYPE_FLOAT, many, ""))
    message("Int64List", ("value", 1, FIELD.TYPE_INT64, many, ""))
    feature = message(
        "Feature",
        ("bytes_list", 1, inner, one, ".t.BytesList"),
        ("float_list", 2, inner, one, ".t.FloatList"),
        ("int64_list", 3, inner, one, ".t.Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for place in feature.field:
        place.oneof_index = 0
    features = message("Features", ("feature", 1, inner, many, ".t.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.field.add(name="key", number=1, type=FIELD.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=inner, label=one, type_name=".t.Feature")
    entry.options.map_entry = True
    message("Example", ("features", 1, inner, one, ".t.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


Example = example_class()


def records(path: Path) -> Iterator[bytes]:
    reader = PyRecordReader_New(str(path))
    while True:
        try:
            reader.GetNext()
        except errors.OutOfRangeError:
            return
        yield reader.record()


def read(out: Path) -> dict[str, dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = {}
    for path in shard_paths(out):
        for record in records(path):
            example = Example.FromString(record)
            sample = {name: feature.bytes_list.value[0] for name, feature in example.features.feature.items()}
            assert all(len(feature.bytes_list.value) == 1 for feature in example.features.feature.values())
            key = sample.pop("__key__").decode()
            assert key not in found
            found[key] = sample
    return found


@tree_kinds
def test_tensorboard_reads_what_was_packed(kind: str, tmp_path: Path) -> None:
    tree = tree_of(kind, tmp_path)
    pack(tree, tmp_path / "out", format="tfrecord", shard_size=8 << 20)
    assert read(tmp_path / "out") == samples_of(tree)


def test_without_the_extra_the_same_bytes_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tree_of("large", tmp_path)
    pack(tree, tmp_path / "out", format="tfrecord", shard_size=8 << 20)
    monkeypatch.setattr(crc32c, "google_crc32c", None)
    pack(tree, tmp_path / "again", format="tfrecord", shard_size=8 << 20)
    for one, two in zip(shard_paths(tmp_path / "out"), shard_paths(tmp_path / "again"), strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert verify_deep(tmp_path / "again").faults == ()


@FEW
@given(TREES)
def test_any_samples_are_read(tmp_path_factory: pytest.TempPathFactory, parts: dict[tuple[str, str], bytes]) -> None:
    folder = tmp_path_factory.mktemp("any")
    tree = made_tree(folder / "in", parts)
    pack(tree, folder / "out", format="tfrecord", shard_size=4096, keep_case=True)
    assert read(folder / "out") == samples_of(tree)
    shutil.rmtree(folder)


def test_two_wrong_bytes_are_found(tmp_path: Path) -> None:
    tree = made_tree(tmp_path / "in", {(f"k{n}", part): b"d" * n for n in range(40) for part in ("jpg", "bin")})
    pack(tree, tmp_path / "out", format="tfrecord")
    check_damage(shard_paths(tmp_path / "out")[0], lambda: read(tmp_path / "out"), tmp_path / "out", seed=1)
