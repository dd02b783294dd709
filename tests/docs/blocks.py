"""The code in README, CONTRIBUTING and the pages, block by block."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

_BLOCK = re.compile(r"^ *```(?P<language>[\w{}-]*)\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE)
_SAVED = re.compile(r"Save this as `([^`]+)`[^\n]*\n\n$")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: Path of the page from the root of the repository.
        line: Line of the opening fence, from 1.
        text: Without the fences and without a common indentation.
        saved_as: The file into which the page asks the reader to save the block, if it does.
    """

    page: str
    line: int
    language: str
    text: str
    saved_as: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """What a console block has the reader type, without comments."""
        typed = [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]
        return [re.sub(r"\s+# .*", "", command) for command in typed]

    @property
    def printed(self) -> str:
        """What a console block says is printed."""
        return "".join(line + "\n" for line in self.text.splitlines() if not line.startswith("$ "))


def pages(root: Path) -> list[Path]:
    """Return README.md, CONTRIBUTING.md and the pages below `docs/`."""
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]


def blocks(root: Path, page: str | None = None) -> list[Block]:
    """Return the fenced blocks of every page, or of one, in their order; Sphinx's directives are left out."""
    return [
        Block(
            page=path.relative_to(root).as_posix(),
            line=text.count("\n", 0, found.start()) + 1,
            language=found["language"],
            text=textwrap.dedent(found["text"]),
            saved_as=saved[1] if (saved := _SAVED.search(text[: found.start()])) else None,
        )
        for path in ([root / page] if page else pages(root))
        for text in [path.read_text(encoding="utf-8")]
        for found in _BLOCK.finditer(text)
        if not found["language"].startswith("{")
    ]


def inline_code(root: Path) -> set[tuple[str, str]]:
    """Return the code within the sentences of every page, each with its page."""
    return {
        (path.relative_to(root).as_posix(), child.content)
        for path in pages(root)
        for token in MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
        for child in token.children or ()
        if child.type == "code_inline"
    }
