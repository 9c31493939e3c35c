"""Settings of object stores: the environment, the options that set it, and where requests go."""

from __future__ import annotations

import pickle

import pytest

from shardtool.errors import UsageProblem
from shardtool.storage import open_place
from shardtool.storage.s3.address import address_of, needs_boto3, object_url, split_url
from shardtool.storage.s3.place import S3Place
from shardtool.storage.s3.settings import S3Settings, apply_s3_options


def test_settings_come_from_the_environment() -> None:
    settings = S3Settings.from_environ(
        {
            "AWS_ENDPOINT_URL": "https://general.example",
            "AWS_ENDPOINT_URL_S3": "https://store.example:9000/",
            "AWS_REGION": "eu-north-1",
            "SHARDTOOL_S3_ENGINE": "boto3",
            "SHARDTOOL_S3_CHECKSUMS": "required",
            "SHARDTOOL_S3_ADDRESSING": "virtual",
            "SHARDTOOL_S3_RETRY_SECONDS": "12.5",
            "SHARDTOOL_NO_SIGN_REQUEST": "1",
            "SHARDTOOL_REQUEST_PAYER": "true",
        }
    )
    assert settings == S3Settings(
        endpoint_url="https://store.example:9000",
        region="eu-north-1",
        engine="boto3",
        checksums="required",
        addressing="virtual",
        retry_s=12.5,
        no_sign_request=True,
        request_payer=True,
    )


def test_an_empty_environment_means_aws_and_the_thin_engine() -> None:
    assert S3Settings.from_environ({"SHARDTOOL_NO_SIGN_REQUEST": "0"}) == S3Settings()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SHARDTOOL_S3_ENGINE", "crt", "auto, thin, boto3, obstore"),
        ("SHARDTOOL_S3_CHECKSUMS", "never", "auto, required, supported"),
        ("SHARDTOOL_S3_ADDRESSING", "host", "auto, path, virtual"),
        ("SHARDTOOL_S3_RETRY_SECONDS", "soon", "expected seconds"),
        ("SHARDTOOL_S3_RETRY_SECONDS", "-1", "expected seconds"),
        ("SHARDTOOL_S3_RETRY_SECONDS", "inf", "expected seconds"),
        ("AWS_ENDPOINT_URL", "store.example", "http:// or https://"),
        ("AWS_ENDPOINT_URL", "http://", "no host"),
        ("AWS_ENDPOINT_URL", "http://a store", "no host"),
        ("AWS_ENDPOINT_URL", "http://store:x", "Port"),
        ("AWS_ENDPOINT_URL", "http://store:99999", "Port"),
        ("AWS_ENDPOINT_URL", "http://[::1", "IPv6"),
        ("AWS_ENDPOINT_URL", "http://store..example", "label"),
        ("AWS_ENDPOINT_URL", "http://store/?region=x", "no place"),
    ],
)
def test_a_variable_with_a_wrong_word_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(UsageProblem, match=said) as raised:
        S3Settings.from_environ({name: value})
    assert value in raised.value.message


def test_an_endpoint_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageProblem) as raised:
        S3Settings.from_environ({"AWS_ENDPOINT_URL": "https://me:hunter2@store.example"})
    assert "hunter2" not in raised.value.message + raised.value.hint


def test_options_become_variables_that_workers_inherit() -> None:
    env = {"SHARDTOOL_S3_ENGINE": "boto3", "OTHER": "kept"}
    apply_s3_options(
        endpoint_url="http://127.0.0.1:9000/",
        no_sign_request=True,
        s3_engine="thin",
        s3_checksums="required",
        environ=env,
    )
    assert env == {
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9000",
        "SHARDTOOL_NO_SIGN_REQUEST": "1",
        "SHARDTOOL_S3_ENGINE": "thin",
        "SHARDTOOL_S3_CHECKSUMS": "required",
        "OTHER": "kept",
    }


def test_options_that_are_not_given_leave_the_environment_alone() -> None:
    env = {"AWS_ENDPOINT_URL": "https://store.example", "SHARDTOOL_NO_SIGN_REQUEST": "1"}
    before = dict(env)
    apply_s3_options(endpoint_url=None, s3_engine=None, workers=4, environ=env)
    assert env == before


@pytest.mark.parametrize(
    ("url", "bucket", "key"),
    [
        ("s3://b", "b", ""),
        ("s3://b/", "b", ""),
        ("s3://b/k//x/../y", "b", "k//x/../y"),
        ("s3://b//k", "b", "/k"),
        ("s3://b/a?b#c%20d", "b", "a?b#c%20d"),
        ("s3://arn:aws:s3:us-west-2:123:accesspoint/ap/k/x", "arn:aws:s3:us-west-2:123:accesspoint/ap", "k/x"),
    ],
)
def test_urls_are_taken_apart_without_a_change(url: str, bucket: str, key: str) -> None:
    assert split_url(url) == (bucket, key)


@pytest.mark.parametrize("url", ["s3://my bucket/x", "s3://b\n/x", "s3://\u6876/x", "s3://b/\udcff"])
def test_names_that_no_store_has_are_refused(url: str) -> None:
    with pytest.raises(UsageProblem, match=r"no bucket is called|not UTF-8"):
        split_url(url)


@pytest.mark.parametrize("url", ["S3://bucket/out", "s3:/bucket/out", "GS://bucket/out"])
def test_a_slip_in_a_url_makes_no_folder_of_that_name(url: str) -> None:
    with pytest.raises(UsageProblem, match="neither a folder nor an s3:// URL"):
        open_place(url)


@pytest.mark.parametrize("url", ["s3://", "s3:///key", "gs://b/k", "b/k"])
def test_urls_without_a_bucket_are_refused(url: str) -> None:
    with pytest.raises(UsageProblem, match=r"no bucket|no URL"):
        split_url(url)


def test_aws_buckets_are_addressed_by_host_where_the_name_allows_it() -> None:
    def where(bucket: str, endpoint: str = "", addressing: str = "auto") -> str:
        address = address_of(bucket, endpoint_url=endpoint, region="eu-west-1", addressing=addressing)
        return address.url + address.prefix

    assert where("photos") == "https://photos.s3.eu-west-1.amazonaws.com"
    assert where("my.photos") == "https://s3.eu-west-1.amazonaws.com/my.photos"
    assert where("photos", addressing="path") == "https://s3.eu-west-1.amazonaws.com/photos"
    assert where("photos", "http://127.0.0.1:9000") == "http://127.0.0.1:9000/photos"
    assert where("photos", "https://store.example/base", "virtual") == "https://photos.store.example/base"
    assert where("photos", "https://store.example/base") == "https://store.example/base/photos"


def test_chinese_regions_have_their_own_domain() -> None:
    address = address_of("b-1", endpoint_url="", region="cn-north-1", addressing="auto")
    assert address.host == "b-1.s3.cn-north-1.amazonaws.com.cn"


@pytest.mark.parametrize(
    ("bucket", "env", "why"),
    [
        ("plain", {}, ""),
        ("arn:aws:s3:us-west-2:123:accesspoint/ap", {}, "access point"),
        ("fast--use1-az4--x-s3", {}, "S3 Express"),
        ("plain", {"AWS_USE_FIPS_ENDPOINT": "true"}, "FIPS"),
        ("plain", {"https_proxy": "http://proxy.example:3128"}, "proxy"),
        ("plain", {"https_proxy": "http://proxy.example:3128", "no_proxy": "amazonaws.com"}, ""),
    ],
)
def test_what_the_thin_client_cannot_do_is_known(
    bucket: str, env: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    address = address_of(bucket, endpoint_url="", region="us-west-2", addressing="auto")
    said = needs_boto3(bucket, address)
    assert why in said if why else said == ""


def test_a_place_names_its_objects_and_travels_to_workers() -> None:
    place = pickle.loads(pickle.dumps(S3Place("s3://bucket/out/")))
    assert (place.url, place.bucket, place.prefix, place.is_local) == ("s3://bucket/out", "bucket", "out/", False)
    assert place.shown("data/x.tar") == "s3://bucket/out/data/x.tar"
    assert place.shown("a\nb") == "s3://bucket/out/a\nb"  # what is shown can be opened
    assert S3Place("s3://bucket").key("x") == "x"


def test_messages_show_no_control_characters() -> None:
    assert object_url("b", "a\x1b[31m\n") == "s3://b/a\\x1b[31m\\n"
    assert object_url("b", b"caf\xe9") == "s3://b/caf\\xe9"
