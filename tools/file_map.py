"""Renew the file map in docs/architecture.md: a table per package, a line per module, which is what its docstring says first.

``--check`` only says whether the map is up to date. What stands outside of the two marks is left alone.
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- file map: made by make docs -->", "<!-- end of the file map -->"
#: In the order of the layers, then by name.
ORDER = (
    "base",
    "wire",
    "records",
    "log",
    "broker",
    "store",
    "net",
    "server",
    "client",
    "cli",
    "console",
    "spark",
    "sim",
    "testing",
    "demo",
)


def first_sentence(path: Path) -> str:
    """What the module says it is, up to its first full stop, colon before a list, or blank line."""
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    line = " ".join(said.split("\n\n")[0].split())
    for end in (". ", "; ", "::"):
        line = line.split(end)[0]
    return line.rstrip(".:").replace("|", "\\|")


def packages() -> list[Path]:
    """Every package, those of the layers first."""

    def place(folder: Path) -> tuple[int, str]:
        parts = folder.relative_to(ROOT / "src").parts
        return (ORDER.index(parts[1]) if len(parts) > 1 and parts[1] in ORDER else -1 if parts[0] == "ottla" else len(ORDER), str(folder))

    return sorted((init.parent for init in (ROOT / "src").rglob("__init__.py")), key=place)


def file_map() -> str:
    """The map, as Markdown."""
    lines = []
    for folder in packages():
        lines += [f"### `{folder.relative_to(ROOT / 'src').as_posix()}/`", "", f"{first_sentence(folder / '__init__.py')}.", ""]
        modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        if modules:
            lines += ["| module | what it is |", "|-|-|"]
            lines += [f"| `{path.name}` | {first_sentence(path)} |" for path in modules]
            lines.append("")
    return "\n".join(lines)


def renewed(page: str) -> str:
    """The page with the present map."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{file_map()}\n{END}{rest.split(END)[1]}"


def main() -> int:
    page = PAGE.read_text()
    wanted = renewed(page)
    if "--check" in sys.argv:
        return 0 if page == wanted else 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
