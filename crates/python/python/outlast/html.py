"""Tables for notebooks: what `_repr_html_` gives."""

from __future__ import annotations

import html
from typing import Any, Iterable, Sequence


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table with a title. Cells are texts, escaped; None is an empty cell."""

    def cells(tag: str, row: Sequence[Any]) -> str:
        return "".join(f"<{tag} style='text-align:left'>{'' if cell is None else html.escape(str(cell))}</{tag}>" for cell in row)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><caption>{html.escape(title)}</caption><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"
