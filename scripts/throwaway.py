"""A server for tests that leaves nothing behind: free ports, a temporary folder, children that die with this process.

`scripts/s3-server` and `scripts/ceph-server` are this module and one recipe each. A recipe starts its processes and
returns the environment in which S3 clients find it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ACCESS_KEY, SECRET_KEY, REGION = "shardtool", "throw-away-secret", "us-east-1"
SKIPPED = 77  # the exit code that says: cannot be had here, the reason is on stderr
START_S = 90.0  # two busy cores and a cold page cache; usually 1 to 4 s
CACHE = Path(os.environ.get("SHARDTOOL_CACHE") or Path.home() / ".cache" / "shardtool")
PR_SET_PDEATHSIG = 1


class Unavailable(Exception):
    """The server cannot be had here; the text says why."""


class Place:
    """A temporary folder and the processes that live in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], name: str) -> None:
        """Start a process whose output goes to NAME.log; it dies with this one, however this one dies."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.children.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    preexec_fn=die_with_parent,
                    start_new_session=True,  # Ctrl-C reaches this process alone, which then stops them in order
                )
            )

    def wait_until(self, is_ready: Callable[[], bool], what: str) -> None:
        """Wait for what is being started; a child that ended is an error with the end of its log."""
        deadline = time.monotonic() + START_S
        while not is_ready():
            if any(child.poll() is not None for child in self.children) or time.monotonic() > deadline:
                raise SystemExit(f"{what} did not start\n{self.ends_of_logs()}")
            time.sleep(0.05)

    def ends_of_logs(self) -> str:
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-800:]}" for path in self.folder.glob("*.log")
        )

    def stop(self) -> None:
        """Stop all, the last started first, each with the processes that it started."""
        for child in reversed(self.children):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def main(name: str, recipe: Callable[[Place, argparse.Namespace], dict[str, str]]) -> int:
    """The command line of both scripts."""
    parser = argparse.ArgumentParser(
        prog=name,
        description=f"Start {name}, print its environment as NAME=VALUE lines, stop it on Ctrl-C; its data goes, too.",
    )
    parser.add_argument("--run", nargs=argparse.REMAINDER, help="run this command beside the server, then stop both")
    parser.add_argument("--until-eof", action="store_true", help="stop when standard input ends")
    parser.add_argument("--tls", action="store_true", help="answer by HTTPS with a certificate of its own")
    parser.add_argument("--folder", type=Path, help="keep data in a temporary folder under this one (default: TMPDIR)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with place_in(options.folder) as place, contextlib.suppress(KeyboardInterrupt):
            environment = recipe(place, options)
            return beside(environment, options)
    except Unavailable as reason:
        print(f"{name}: skipped: {reason}", file=sys.stderr)
        return SKIPPED
    return 0


def beside(environment: Mapping[str, str], options: argparse.Namespace) -> int:
    if options.run:
        return subprocess.run(options.run, env={**os.environ, **environment}, check=False).returncode
    print("".join(f"{name}={value}\n" for name, value in environment.items()), end="", flush=True)
    if options.until_eof:
        sys.stdin.read()
    else:
        signal.pause()
    return 0


@contextlib.contextmanager
def place_in(parent: Path | None) -> Iterator[Place]:
    place = Place(Path(tempfile.mkdtemp(prefix="shardtool-server-", dir=parent)))
    try:
        yield place
    finally:
        place.stop()
        shutil.rmtree(place.folder, ignore_errors=True)


def environment_of(port: int, certificate: Path | None = None) -> dict[str, str]:
    """What S3 clients read; both spellings of the region, because clients differ."""
    return {
        "AWS_ENDPOINT_URL": f"{'https' if certificate else 'http'}://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        **({"AWS_CA_BUNDLE": os.fspath(certificate)} if certificate else {}),
    }


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on; all are held at once, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def answers(url: str) -> bool:
    """Whether an HTTP server is there; an error status is an answer."""
    try:
        urllib.request.urlopen(url, timeout=2)
    except urllib.error.HTTPError as problem:
        return problem.code < 500
    except OSError:
        return False
    return True


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def certificate_in(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key, both PEM."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "7", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", os.fspath(key), "-out", os.fspath(certificate)]
    if shutil.which("openssl") is None:
        raise Unavailable("openssl is not here; --tls needs it")
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
