"""How bytes are read, listed and created."""

from __future__ import annotations
