"""Writes the pages of the rules, ``docs/rules/``, from the checks' docstrings: ``python docs/pages.py``.

``tests/test_pages.py`` fails where a page is not what this would write. The text is that of ``ddplint rule CODE``.
"""

from __future__ import annotations

from pathlib import Path

from ddplint.checks import registry
from ddplint.checks.base import Check

FOLDER = Path(__file__).parent / "rules"
INDEX = "README.md"
HUNDREDS = {
    "1": "Rule files against the trace",
    "2": "The model",
    "3": "DDP's settings",
    "4": "Checkpoints",
    "9": "ddplint itself",
}


def pages() -> dict[str, str]:
    """Every page by its file's name: one a code, and the index."""
    checks = registry.all_checks()
    return {INDEX: _index(checks), **{f"{check.CODE}.md": _page(check) for check in checks}}


def _page(check: Check) -> str:
    return f"{registry.page(check)}\n[All rules](README.md)\n"


def _index(checks: tuple[Check, ...]) -> str:
    """A table for each hundred of codes."""
    lines = [
        "# Rules",
        "",
        "One page a code, the same text as `ddplint rule CODE` prints. An error or a warning makes `ddplint check` exit "
        "with 1, an info does not. The pages are written by `python docs/pages.py`.",
    ]
    for digit, title in HUNDREDS.items():
        rows = [check for check in checks if check.CODE[3] == digit]
        if rows:
            lines += ["", f"## {title}", "", "| code | name | severity | |", "| --- | --- | --- | --- |"]
            lines += [f"| [{c.CODE}]({c.CODE}.md) | {c.NAME} | {c.SEVERITY} | {_summary(c)} |" for c in rows]
    return "\n".join(lines) + "\n"


def _summary(check: Check) -> str:
    return (check.__doc__ or "").strip().partition("\n")[0]


def write(folder: Path = FOLDER) -> None:
    """Write every page, and take away those of codes that are gone."""
    folder.mkdir(exist_ok=True)
    wanted = pages()
    for path in folder.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
