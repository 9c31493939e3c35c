"""Tests in tests/peers need other libraries, those in tests/servers S3 servers: scripts/test-peers and test-servers."""

from __future__ import annotations

collect_ignore = ["peers", "servers"]
