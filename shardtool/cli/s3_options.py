"""Options of commands that may meet an object store: which one, and how. They reach all processes as variables."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardtool.cli.command import GroupedOption
from shardtool.cli.types import DidYouMeanChoice
from shardtool.storage.s3.settings import CHECKSUMS, ENGINES, apply_s3_options

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

SECTION = "Object storage"


def _option(name: str, **settings: Any) -> Callable[[F], F]:
    return click.option(name, cls=GroupedOption, section=SECTION, **settings)


_OPTIONS = (
    _option(
        "--endpoint-url",
        metavar="URL",
        help="The store behind s3:// where it is not AWS; else AWS_ENDPOINT_URL, or what the AWS profile says.",
    ),
    _option("--no-sign-request", is_flag=True, help="Ask without credentials: public buckets."),
    _option(
        "--s3-engine",
        type=DidYouMeanChoice(list(ENGINES)),
        help="What talks to the store: auto (thin, built in), boto3, or obstore of the extra fast.",
    ),
    _option(
        "--s3-checksums",
        type=DidYouMeanChoice(list(CHECKSUMS)),
        help="How the store checks uploads: auto asks it, supported is CRC32, required is MD5 alone, for older stores.",
    ),
)


def s3_options(function: F) -> F:
    """Options of object stores; the command is not told, the environment is, before workers start.

    Stands above every decorator whose options the command takes by name.
    """

    @functools.wraps(function)
    def command(
        *args: Any,
        endpoint_url: str | None,
        no_sign_request: bool,
        s3_engine: str | None,
        s3_checksums: str | None,
        **chosen: Any,
    ) -> Any:
        apply_s3_options(
            endpoint_url=endpoint_url,
            no_sign_request=no_sign_request,
            s3_engine=s3_engine,
            s3_checksums=s3_checksums,
        )
        return function(*args, **chosen)

    decorated: Any = command
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
