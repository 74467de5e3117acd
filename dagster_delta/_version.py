"""The version of the library, in a module that every layer may import."""

from __future__ import annotations

__version__ = "0.1.0"
