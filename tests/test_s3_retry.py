"""Attempts and limits of requests, by a clock that tests turn."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.errors import AccessDenied, NoSpace, RemoteError, SourceChanged, SourceNotFound
from shardtool.storage.s3.answers import OK, PERMANENT, code_of, judge, patience_of, refusal
from shardtool.storage.s3.exchange import Request, Response
from shardtool.storage.s3.retry import THROTTLED, Attempts, Limiter, Pace, retries_so_far


@dataclass
class Clock:
    """Time that passes only when somebody sleeps."""

    time: float = 0.0
    slept: list[float] = field(default_factory=list)
    luck: float = 0.999

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def pace(self) -> Pace:
        return Pace(self.sleep, lambda: self.time, lambda: self.luck)


def test_ten_attempts_end_a_request() -> None:
    clock = Clock()
    attempts = Attempts(300, clock.pace())
    while attempts.wait("connection"):
        pass
    assert attempts.total == 10
    assert [round(seconds, 1) for seconds in clock.slept] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20.0]


def test_a_store_that_asks_for_patience_gets_all_of_the_budget_and_no_more() -> None:
    clock = Clock()
    attempts = Attempts(300, clock.pace())
    while attempts.wait(THROTTLED):
        pass
    assert attempts.total > 10
    assert 280 <= clock.time <= 300


def test_progress_starts_patience_anew() -> None:
    clock = Clock()
    attempts = Attempts(300, clock.pace())
    for _ in range(50):
        attempts.progress()
        assert attempts.wait("body")
    assert attempts.total == 51
    assert max(clock.slept) < 0.11


def test_the_wait_is_as_long_as_the_store_says() -> None:
    clock = Clock(luck=0.0)
    assert Attempts(300, clock.pace()).wait(THROTTLED, at_least_s=7)
    assert clock.slept == [7]


def test_a_wait_longer_than_the_budget_is_not_begun() -> None:
    clock = Clock()
    assert not Attempts(60, clock.pace()).wait(THROTTLED, at_least_s=3600)
    assert clock.slept == []


@given(st.floats(0, 0.9999), st.floats(0, 400), st.sampled_from(["connection", THROTTLED]))
def test_no_request_outlasts_its_budget(luck: float, budget: float, kind: str) -> None:
    clock = Clock(luck=luck)
    attempts = Attempts(budget, clock.pace())
    for _ in range(2000):
        if not attempts.wait(kind):
            break
    assert clock.time <= budget


def test_retries_are_counted_by_kind() -> None:
    before = retries_so_far().get("stall", 0)
    Attempts(300, Clock().pace()).wait("stall")
    assert retries_so_far()["stall"] == before + 1


def test_the_limit_is_halved_once_for_a_burst_of_refusals() -> None:
    clock = Clock()
    limiter = Limiter(clock.pace())
    for _ in range(64):
        limiter.__enter__()
    for _ in range(64):
        limiter.__exit__()
        limiter.slow_down()
    assert limiter.limit == 32


def test_the_limit_grows_by_one_a_second_up_to_its_end() -> None:
    clock = Clock()
    limiter = Limiter(clock.pace())
    limiter.slow_down()
    assert limiter.limit == 1
    clock.time += 9
    with limiter:
        assert limiter.limit == 10
    clock.time += 10_000
    with limiter:
        assert limiter.limit == Limiter.MOST


def test_the_limit_never_falls_below_one() -> None:
    clock = Clock()
    limiter = Limiter(clock.pace())
    for _ in range(20):
        with limiter:
            limiter.slow_down()
        clock.time += 1.5
    assert limiter.limit >= 1


def test_a_thread_waits_until_the_limit_lets_it() -> None:
    clock = Clock()
    limiter = Limiter(clock.pace())
    limiter.slow_down()
    entered = threading.Event()

    def second() -> None:
        with limiter:
            entered.set()

    limiter.__enter__()
    thread = threading.Thread(target=second)
    thread.start()
    assert not entered.wait(0.05)
    limiter.__exit__()
    assert entered.wait(10)
    thread.join()


def answer(status: int, code: str = "", **headers: str) -> Response:
    body = f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>m</Message></Error>".encode() if code else b""
    return Response(status, {name.replace("_", "-"): value for name, value in headers.items()}, body, len(body))


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        (answer(200), OK),
        (answer(206), OK),
        (answer(503, "SlowDown"), THROTTLED),
        (answer(503), THROTTLED),
        (answer(429), THROTTLED),
        (answer(400, "RequestLimitExceeded"), THROTTLED),
        (answer(500, "InternalError"), "server"),
        (answer(502), "server"),
        (answer(504), "server"),
        (answer(408), "server"),
        (answer(400, "RequestTimeout"), "server"),
        (answer(409, "OperationAborted"), "server"),
        (answer(200, "InternalError"), "server"),
        (answer(200, "SlowDown"), THROTTLED),
        (answer(400, "BadDigest"), "checksum"),
        (answer(400, "XAmzContentChecksumMismatch"), "checksum"),
        (answer(404, "NoSuchKey"), PERMANENT),
        (answer(403, "AccessDenied"), PERMANENT),
        (answer(412, "PreconditionFailed"), PERMANENT),
        (answer(400, "InvalidArgument"), PERMANENT),
        (answer(409, "BucketAlreadyExists"), PERMANENT),
        (answer(501, "NotImplemented"), PERMANENT),
        (answer(301, "PermanentRedirect"), PERMANENT),
    ],
)
def test_answers_are_judged(response: Response, verdict: str) -> None:
    assert judge(response, code_of(response)) == verdict


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"x_amz_retry_after": "1500"}, 1.5),
        ({"retry_after": "Thu, 01 Jan 1970 00:01:00 GMT"}, 50.0),
        ({"retry_after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry_after": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_patience_is_read_in_every_form(headers: dict[str, str], seconds: float) -> None:
    assert patience_of(answer(503, **headers), now=10.0) == seconds


@pytest.mark.parametrize(
    ("status", "code", "kind", "exit_code"),
    [
        (404, "NoSuchKey", SourceNotFound, 5),
        (404, "NoSuchBucket", SourceNotFound, 5),
        (403, "AccessDenied", AccessDenied, 5),
        (400, "ExpiredToken", AccessDenied, 5),
        (412, "PreconditionFailed", SourceChanged, 5),
        (507, "", NoSpace, 7),
        (403, "QuotaExceeded", NoSpace, 7),
        (411, "MissingContentLength", RemoteError, 8),
        (400, "InvalidArgument", RemoteError, 8),
    ],
)
def test_refusals_become_errors_with_key_and_request_id(status: int, code: str, kind: type, exit_code: int) -> None:
    response = answer(status, code, x_amz_request_id="REQ1")
    error = refusal(Request("GET", "b", "k"), response, code, "https://store.example")
    assert type(error) is kind
    assert error.exit_code == exit_code
    assert "REQ1" in error.message
    assert "s3://b/k" in error.message or "bucket 'b'" in error.message


def test_refusals_carry_the_errno_of_the_builtin_errors() -> None:
    missing = refusal(Request("GET", "b", "k"), answer(404, "NoSuchKey"), "NoSuchKey", "e")
    denied = refusal(Request("GET", "b", "k"), answer(403, "AccessDenied"), "AccessDenied", "e")
    assert isinstance(missing, FileNotFoundError)
    assert isinstance(denied, PermissionError)
    assert (missing.errno, denied.errno) == (2, 13)


def test_a_missing_bucket_is_named() -> None:
    error = refusal(Request("GET", "b", "k"), answer(404, "NoSuchBucket"), "NoSuchBucket", "https://store.example")
    assert error.message.startswith("bucket 'b' does not exist at https://store.example")


def test_a_store_that_knows_no_checksums_gets_the_option_named() -> None:
    error = refusal(Request("PUT", "b", "k"), answer(411, "MissingContentLength"), "MissingContentLength", "e")
    assert "--s3-checksums required" in error.hint
