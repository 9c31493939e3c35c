"""Tests in tests/peers need other libraries, in environments of their own: scripts/test-peers runs them."""

from __future__ import annotations

collect_ignore = ["peers"]
