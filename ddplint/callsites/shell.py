"""DDP's flag on the command lines of shell scripts: transformers' option, Lightning's and hydra's overrides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddplint.callsites import known
from ddplint.callsites.model import Edit, Setting, State, Wrap, short
from ddplint.callsites.source import Source

MARKS = re.compile(rb"find[_-]unused[_-]parameters")

# string_to_bool in transformers/hf_argparser.py.
_ON, _OFF = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")
_OPPOSITE = {"true": "false", "yes": "no", "t": "f", "y": "n", "1": "0"}

_ARGUMENT = re.compile(r"--ddp[_-]find[_-]unused[_-]parameters(=|$)")
_STRATEGY_FLAG = re.compile(r"(?:--|\+{0,2})[\w.]*strategy(?:\.init_args|\.dict_kwargs)?\.find_unused_parameters(=|$)")
_STRATEGY = re.compile(r"(?:--|\+{0,2})(?:[\w.]*\.)?strategy(=|$)")

_TALKERS = ("echo", "printf", "cat", "grep", "sed", "#")
_SHELLS = ("bash", "sh", "zsh", "sbatch", "ssh", "qsub", "srun")
_SEPARATORS = "\n;&|()<>`"


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command: where it is, and its text as the shell would pass it on, variables aside."""

    start: int
    end: int
    value: str
    quoted: bool


def wraps(source: Source) -> list[Wrap]:
    """The options in ``source`` that settle the flag."""
    return [wrap for command in commands(source.text) for wrap in _of_command(source, command)]


def _of_command(source: Source, words: Sequence[Word]) -> Iterator[Wrap]:
    name = next((word.value for word in words if not re.match(r"\w+\+?=", word.value)), "")
    if name.rpartition("/")[2] in _TALKERS:
        return
    for number, word in enumerate(words):
        after = words[number + 1] if number + 1 < len(words) else None
        if (
            word.quoted
            and any(space in word.value for space in " \t\n")
            and MARKS.search(word.value.encode(errors="replace"))
        ):
            inner = source.text[word.start : word.end]
            opened = re.match(r"[\w+]*=?[\"']", inner)
            if opened is not None and inner[opened.end() : -1] in word.value:  # no escapes: its places are the file's
                for command in commands(source.text[: word.end - 1], word.start + opened.end()):
                    yield from _of_command(source, command)
        elif (found := _ARGUMENT.match(word.value)) or (found := _STRATEGY_FLAG.match(word.value)):
            transformers = _ARGUMENT.match(word.value) is not None
            yield _wrap(source, word, _flag(source, word, after, found.end(), bare=transformers))
        elif named := _STRATEGY.match(word.value):
            value, at = _value(source, word, after, named)
            setting = known.strategy(value)
            if setting is not None and "find_unused" in value:
                yield _wrap(source, word, _named(source, setting, value, at))


def _flag(source: Source, word: Word, after: Word | None, end: int, *, bare: bool) -> Setting:
    """What an option says: ``--flag VALUE``, ``--flag=VALUE``, or, of transformers, ``--flag`` alone."""
    if "=" in word.value:
        value, holder = word.value[end:], word
    elif after is not None and not after.value.startswith("-"):
        value, holder = after.value, after
    elif bare:
        return Setting("on", word.value, Edit(word.end, word.end, "", " False"))
    else:
        return Setting("unknown", word.value)
    states: dict[str, State] = {**dict.fromkeys(_ON, "on"), **dict.fromkeys(_OFF, "off")}
    state = states.get(value.lower(), "unknown")
    if state != "on":
        return Setting(state, short(value))
    at = source.text.rfind(value, holder.start, holder.end)
    edit = Edit(at, at + len(value), value, _like(value)) if at >= 0 else None
    return Setting("on", value, edit, "" if edit else "it is not written plainly")


def _like(value: str) -> str:
    """The opposite of ``value``, in letters like its own."""
    opposite = _OPPOSITE[value.lower()]
    return opposite.upper() if value.isupper() and len(value) > 1 else opposite.title() if value[0].isupper() else opposite


def _value(source: Source, word: Word, after: Word | None, found: re.Match[str]) -> tuple[str, int]:
    value, holder = (word.value[found.end() :], word) if found[1] else (after.value if after else "", after or word)
    return value, source.text.rfind(value, holder.start, holder.end) if value else -1


def _named(source: Source, setting: Setting, value: str, at: int) -> Setting:
    if setting.state != "on":
        return setting
    if at < 0:
        return Setting("on", value, None, "it is not written plainly")
    return Setting("on", value, Edit(at, at + len(value), value, known.strategy_off(value, fabric=False)))


def _wrap(source: Source, word: Word, setting: Setting) -> Wrap:
    line, column = source.place(word.start)
    name = word.value.partition("=")[0]
    return Wrap(str(source.path), line, column, "shell", name, setting, known.OFF, source.line(line))


def commands(text: str, start: int = 0) -> Iterator[list[Word]]:
    """The commands in ``text`` from ``start`` on, each as its words; comments and here-documents are passed over.

    A here-document that a shell reads is part of the script.
    """
    words: list[Word] = []
    ends: list[str] = []  # of the here-documents that begin on the next line
    at = start
    while at < len(text):
        sign = text[at]
        if text.startswith(("\\\n", "\\\r\n"), at):
            at = text.index("\n", at) + 1
        elif sign in " \t\r":
            at += 1
        elif sign == "#":
            at = _line_end(text, at)
        elif here := re.compile(r"<<-?\s*(['\"]?)(\w+)\1").match(text, at):
            runs = bool(words) and words[0].value.rpartition("/")[2] in _SHELLS
            ends += [] if runs else [here[2]]
            at = here.end()
        elif sign in _SEPARATORS:
            if words and sign not in "<>":
                yield words
                words = []
            at += 1
            if sign == "\n":
                for end in ends:
                    close = re.compile(rf"^\t*{re.escape(end)}\r?$", re.MULTILINE).search(text, at)
                    at = close.end() if close else len(text)
                ends = []
        else:
            word = _word(text, at)
            words.append(word)
            at = word.end
    if words:
        yield words


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _word(text: str, start: int) -> Word:
    """The word that begins at ``start``."""
    at, value, quoted = start, [], False
    while at < len(text):
        sign = text[at]
        if sign == "\\" and at + 1 < len(text):
            if text.startswith(("\\\n", "\\\r\n"), at):
                at = text.index("\n", at) + 1
                continue
            value.append(text[at + 1])
            at += 2
        elif sign in "'\"":
            end = _quote_end(text, at)
            value.append(text[at + 1 : end])
            quoted = True
            at = end + 1
        elif text.startswith("$(", at) or text.startswith("${", at):
            end = _closing(text, at + 1)
            value.append(text[at:end])
            at = end
        elif sign in " \t\r" or sign in _SEPARATORS:
            break
        else:
            value.append(sign)
            at += 1
    return Word(start, min(at, len(text)), "".join(value), quoted)


def _quote_end(text: str, at: int) -> int:
    """Where the quote that opens at ``at`` closes; the end of the text if it does not."""
    quote, at = text[at], at + 1
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" and quote == '"' else 1
    return min(at, len(text))


def _closing(text: str, at: int) -> int:
    """The end of the bracket that opens at ``at``."""
    opening, closing = text[at], {"(": ")", "{": "}"}[text[at]]
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if depth == 0:
            return place + 1
    return len(text)
