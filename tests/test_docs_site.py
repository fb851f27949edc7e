"""The site of the documentation, without building it: the pages of its navigation, the links of all pages, and the names of the API."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
from tools import docs_site

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def test_the_navigation_has_every_page_but_the_decisions() -> None:
    named = set(re.findall(r"^ +- ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    made = {"index.md", "repository/CHANGELOG.md", "api/index.md", *(f"api/{name}.md" for name in docs_site.API)}
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES}
    assert named - pages == made
    assert pages - named == {page for page in pages if page.startswith("decisions/")}


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    source = page.relative_to(ROOT).as_posix()
    for part in docs_site.FENCE.split(page.read_text(encoding="utf-8")):
        for link in () if part.startswith("```") else docs_site.LINK.finditer(part):
            # Directories without a page have no link in the site, which is not an error.
            there = ":" in link[2] or (page.parent / link[2]).exists()
            assert there, f"{source}: {link[2]}"


@pytest.mark.parametrize("name", [one for _, _, objects in docs_site.API.values() for one in objects])
def test_the_api_pages_name_what_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    try:
        import_module(name)
    except ModuleNotFoundError:
        assert hasattr(import_module(module), attribute), name


def test_links_are_rewritten_for_the_site() -> None:
    assert docs_site._target("docs/clients.md", "../examples/notebook/clients.ipynb") == "examples/notebook/clients.ipynb"
    assert docs_site._site_uri("examples/notebook/clients.ipynb") == "repository/examples/notebook/clients.ipynb.txt"
    assert docs_site._target("README.md", "docs/clients.md") == "docs/clients.md"
    assert docs_site._site_uri("docs/clients.md") == "clients.md"
    assert docs_site._target("docs/a.md", "https://kafka.apache.org") is None
    assert docs_site.SHIM.sub("x", 'src="https://unpkg.com/iframe-worker/shim"') == 'src="x"'
    assert docs_site.FOREIGN.search('<script src="https://host/x.js">') is not None
    assert docs_site.FOREIGN.search('<script src="assets/x.js">') is None
