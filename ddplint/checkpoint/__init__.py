"""Checkpoint files, read without loading them: names, shapes and sizes of what they hold. Nothing here imports torch."""
