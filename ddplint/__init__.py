"""ddplint: which trainable parameters never receive a gradient, on which paths and why, before any GPU is rented.

Importing this package imports neither torch nor networkx; ``ddplint.cli`` is the command line.
"""

from __future__ import annotations

__version__ = "0.1.0"
