"""``python -m ddplint``."""

from __future__ import annotations

from ddplint.front import main

main()
