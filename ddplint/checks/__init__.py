"""The checks: one file a rule code, found by looking into this folder; adding a file adds a rule."""
