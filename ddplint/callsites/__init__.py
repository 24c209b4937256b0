"""DDP wraps found in source by syntax (Python, YAML, shell scripts), and the edits that turn the flag off.

Nothing here imports torch, or any of the code that it reads.
"""
