"""Stages reach who listens, and nobody else."""

from __future__ import annotations

from ddplint.stages import say, told_to


def test_a_listener_hears_what_is_said_inside_the_block() -> None:
    heard: list[str] = []
    say("before")
    with told_to(heard.append):
        say("path 1")
        with told_to(lambda stage: heard.append(stage.upper())):
            say("path 2")
        say("path 3")
    say("after")
    assert heard == ["path 1", "PATH 2", "path 3"]
