"""Texts as literals of Spark's SQL."""


def literal(text: str) -> str:
    """A SQL literal. Spark reads backslashes in it as escapes, so they are doubled."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
