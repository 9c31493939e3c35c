"""What a table of `name -> module:attribute` names, imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def resolve(name: str) -> Any:
    """The object that `module:attribute` names, imported on the way."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
