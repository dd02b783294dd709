"""Texts for parsers to read."""

from __future__ import annotations

from hypothesis import strategies as st

# With halves of surrogate pairs, which JSON and Java properties can hold and UTF-8 can't.
ANY_TEXT = st.text(st.characters(exclude_categories=()))
