"""Pure functions from records to text: nothing here opens, prints or asks for the time."""

from __future__ import annotations
