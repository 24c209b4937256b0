"""The line that says what is being traced: shown on a terminal, gone when all is done."""

from __future__ import annotations

import io
import os

import pytest

from ddplint.live import can_be_shown, shown


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def test_only_a_terminal_that_can_go_back_shows_it(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_be_shown(terminal)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not can_be_shown(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not can_be_shown(terminal)


def test_stages_are_shown_and_prints_scroll_past(terminal: Terminal) -> None:
    with shown("checking hybrid", terminal) as live:
        live.say("path 12 on rank 0")
        os.write(live.output, b"epoch 1\nno [end] \xff")
    written = terminal.getvalue()
    assert "checking hybrid" in written
    assert "epoch 1\n" in written
    assert "no [end] \ufffd\n" in written
    assert written.endswith("\x1b[?25h")  # the cursor is back
    assert "\x1b[2K" in written  # the line is gone


def test_an_error_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    open_files = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    with pytest.raises(KeyboardInterrupt), shown("checking", terminal):
        raise KeyboardInterrupt
    assert terminal.getvalue().endswith("\x1b[?25h")
    assert (set(os.listdir("/proc/self/fd")) if open_files else set()) == open_files
