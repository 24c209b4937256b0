"""``python -m ddplint``."""

from __future__ import annotations

from ddplint.cli import main

main()
