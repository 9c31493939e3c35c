"""A listing is complete on every kind of store, each key once, with few requests; a store that cannot list is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from list_server import TIME_NS, KeyServer

from shardtool.errors import RemoteError
from shardtool.storage.s3.listing import Listing, _beginnings, _between
from shardtool.storage.s3.pages import concat, parse_page

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS = st.lists(st.text(alphabet="ab/-.0ä", min_size=1, max_size=8).map(str.encode), max_size=60, unique=True)


def listed(server: KeyServer, prefix: bytes = b"", *, is_ordered: bool = False) -> list[bytes]:
    found = Listing(server.ask, "s3://bucket", threads=4, is_ordered=is_ordered).objects(prefix)
    keys: list[bytes] = found.keys.to_pylist()
    return keys


@settings(max_examples=150)
@given(KEYS, st.integers(1, 9), st.booleans(), st.booleans(), st.sampled_from([b"", b"a", b"a/", b"b/a"]))
def test_every_key_comes_once(keys: list[bytes], page: int, folders_first: bool, encoded: bool, prefix: bytes) -> None:
    server = KeyServer(keys, page=page, folders_first=folders_first, is_encoded=encoded)
    assert sorted(listed(server, prefix)) == sorted(key for key in keys if key.startswith(prefix))


@settings(max_examples=150)
@given(KEYS, st.integers(1, 9), st.sampled_from([b"", b"a", b"a/"]))
def test_every_key_comes_once_where_ranges_are_shared(keys: list[bytes], page: int, prefix: bytes) -> None:
    server = KeyServer(keys, page=page)
    assert sorted(listed(server, prefix, is_ordered=True)) == sorted(key for key in keys if key.startswith(prefix))


def test_a_flat_prefix_of_an_ordered_store_is_shared_among_threads() -> None:
    keys = [b"img_%08d.jpg" % number for number in range(30_000)]
    server = KeyServer(keys)
    assert sorted(listed(server, is_ordered=True)) == keys
    starts = [query["start-after"] for query in server.queries if "start-after" in query]
    assert len(starts) > 10
    assert len(server.queries) < 2 * 30 + 4 + 16


def test_order_is_learned_from_keys_that_tell_it_from_the_order_of_folders() -> None:
    keys = [b"a-0", b"a/x", *(b"b%05d" % number for number in range(10_000))]
    for folders_first in (False, True):
        server = KeyServer(keys, folders_first=folders_first)
        assert sorted(listed(server)) == keys
        is_shared = any("start-after" in query for query in server.queries)
        assert is_shared != folders_first


def test_a_store_that_stops_being_ordered_is_an_error() -> None:
    server = KeyServer([b"%06d" % number for number in range(20_000)], ignores_start_after=True)
    with pytest.raises(RemoteError, match="not in byte order"):
        listed(server, is_ordered=True)


@given(st.text(alphabet="09Az-~ä", max_size=4), st.text(alphabet="09Az-~ä", max_size=4))
def test_a_key_between_two_others_lies_there(one: str, other: str) -> None:
    low, high = sorted((b"p/" + one.encode(), b"p/" + other.encode()))
    for bound in (high, None):
        middle = _between(low, bound, b"p/")
        if middle is not None:
            assert low < middle
            assert middle.decode()
            assert bound is None or middle < bound


def test_columns_belong_to_their_keys() -> None:
    found = Listing(KeyServer([b"a", b"bbb/cc"]).ask, "s3://bucket").objects(b"")
    assert found.keys.to_pylist() == [b"a", b"bbb/cc"]
    assert found.sizes.tolist() == [1, 6]
    assert found.etags.to_pylist() == [b"e1", b"e6"]
    assert found.mtimes_ns.tolist() == [TIME_NS, TIME_NS]


def test_many_folders_are_listed_side_by_side_with_few_more_requests_than_pages() -> None:
    keys = [b"f%05d/%d" % (folder, number) for folder in range(3000) for number in range(5)]
    server = KeyServer(keys)
    assert sorted(listed(server)) == sorted(keys)
    assert len(server.queries) < 15 + 3 + 3 * 4 * 4  # pages, pages of folders, two or three a job
    assert len({query["prefix"] for query in server.queries}) > 8


def test_one_folder_in_which_most_lies_is_split_in_turn() -> None:
    keys = [b"top/only/c%03d/%d" % (folder, number) for folder in range(40) for number in range(100)]
    keys += [b"top/%d/x" % number for number in range(20)]
    server = KeyServer(keys)
    assert sorted(listed(server, b"top/")) == sorted(keys)
    assert len({query["prefix"] for query in server.queries}) > 20


def test_a_flat_prefix_is_listed_page_after_page() -> None:
    keys = [b"%06d" % number for number in range(40_000)]
    server = KeyServer(keys)
    assert listed(server) == keys
    assert len(server.queries) == 40 + 4  # the probe gave up after 4


def test_a_small_prefix_takes_one_request() -> None:
    server = KeyServer([b"a/%d" % number for number in range(900)])
    listed(server)
    assert len(server.queries) == 1


def test_every_query_asks_for_full_pages_of_encoded_keys() -> None:
    server = KeyServer([b"%d/x" % number for number in range(2500)])
    listed(server)
    assert {(query["max-keys"], query["encoding-type"]) for query in server.queries} == {("1000", "url")}


def test_where_delimiters_are_denied_the_prefix_is_listed_flat() -> None:
    keys = [b"a/%02d/%d" % (folder, number) for folder in range(20) for number in range(100)]
    server = KeyServer(keys, denies_delimiter=True)
    assert listed(server, b"a/") == sorted(keys)


def page_of(inside: str) -> bytes:
    return f"<ListBucketResult>{inside}</ListBucketResult>".encode()


MORE = "<IsTruncated>true</IsTruncated>"
ROW = "<Contents><Key>k</Key><LastModified>2026-01-31T12:00:00Z</LastModified><ETag>e</ETag><Size>1</Size></Contents>"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (page_of(f"{MORE}{ROW}<NextContinuationToken>t</NextContinuationToken>"), "the same page again"),
        (page_of(f"{MORE}{ROW}"), "not how to get the next"),
        (b"<html>Welcome</html>", "no listing"),
        (page_of("<Contents><Key>k</Key></Contents>"), "no key or no size"),
        (page_of(ROW.replace("2026", "yesterday")), "cannot be listed"),
    ],
)
def test_a_store_that_cannot_list_is_named(body: bytes, told: str) -> None:
    with pytest.raises(RemoteError, match=r"s3://bucket cannot be listed") as error:
        Listing(lambda _: body, "s3://bucket").objects(b"")
    assert told in error.value.message
    assert "--files-from" in error.value.hint


def test_an_empty_page_is_not_the_end() -> None:
    def ask(query: tuple[tuple[str, str], ...]) -> bytes:
        number = int(dict(query).get("continuation-token", "0"))
        more = f"{MORE}<NextContinuationToken>{number + 1}</NextContinuationToken>"
        return page_of(more if number < 3 else ROW)

    assert Listing(ask, "s3://bucket").objects(b"").num_rows == 1


def test_a_denied_bucket_is_an_error() -> None:
    def ask(_: object) -> bytes:
        raise PermissionError("denied")

    with pytest.raises(PermissionError):
        Listing(ask, "s3://bucket").objects(b"")


@pytest.mark.parametrize("quote", ["&quot;", "&#34;", '"', ""])
def test_quotes_of_etags_are_taken_off_however_they_are_written(quote: str) -> None:
    found = parse_page(page_of(ROW.replace("<ETag>e<", f"<ETag>{quote}e-2{quote}<")))
    assert found.objects.etags.to_pylist() == [b"e-2"]


def test_a_missing_etag_or_time_is_empty_and_the_other_rows_keep_theirs() -> None:
    bare = "<Contents><Key>b</Key><Size>2</Size></Contents>"
    found = parse_page(page_of(ROW + bare + ROW)).objects
    assert found.etags.to_pylist() == [b"e", b"", b"e"]
    assert found.mtimes_ns.tolist()[1] == 0
    assert found.sizes.tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("a%20b", b"a b"),
        ("a+b", b"a b"),
        ("a%2Bb", b"a+b"),
        ("%25", b"%"),
        ("x%0Ay", b"x\ny"),
        ("%C3%A4%2F&apos;", "ä/'".encode()),
    ],
)
def test_keys_are_decoded(written: str, key: bytes) -> None:
    body = page_of(f"<EncodingType>url</EncodingType>{ROW.replace('<Key>k<', f'<Key>{written}<')}")
    assert parse_page(body).objects.keys.to_pylist() == [key]


@given(
    st.lists(st.text(alphabet="abä", min_size=0, max_size=5).map(lambda s: f"p/{s}/".encode()), unique=True),
    st.integers(1, 5),
)
def test_beginnings_cover_every_name_once(names: list[bytes], most: int) -> None:
    covers = list(_beginnings(sorted(names), 2, most))
    assert all(sum(name.startswith(cover) for cover in covers) == 1 for name in names)
    assert all(cover.decode() for cover in covers)


def test_nothing_is_a_table_of_no_rows() -> None:
    assert concat([]).num_rows == 0
    assert listed(KeyServer([])) == []


def test_progress_counts_all_objects() -> None:
    told: list[int] = []
    tell: Callable[[int], None] = told.append
    server = KeyServer([b"%d/%d" % (folder, n) for folder in range(20) for n in range(100)])
    Listing(server.ask, "s3://bucket", progress=tell).objects(b"")
    assert max(told) == 2000
