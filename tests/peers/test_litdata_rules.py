"""The rules of `--compat litdata` against litdata itself."""

from __future__ import annotations

import tempfile

from babel import SAMPLES, Babel, packed
from emitted import verdict_of
from hypothesis import given, settings
from litdata.processing.media_folder import iter_webdataset_tar

OWN = {"__key__", "__url__"}


def read(samples: Babel) -> list[tuple[str, set[str]]]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(packed(samples))
        file.flush()
        return [(sample["__key__"], set(sample) - OWN) for sample in iter_webdataset_tar(file.name)]


@settings(max_examples=300, deadline=None)
@given(SAMPLES)
def test_samples_come_as_packed_save_folders_where_and_only_where_nothing_is_found(samples: Babel) -> None:
    def text(name: bytes) -> str:
        return name.decode("utf-8", "surrogateescape")

    wanted = [(text(key).replace("\\", "/").rpartition("/")[2], set(map(text, parts))) for key, parts in samples]
    assert (read(samples) == wanted) == verdict_of("litdata", samples).is_clean
