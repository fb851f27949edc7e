"""Hooks of mkdocs: pages and files that the site has besides docs/.

    index.md             README.md
    repository/PATH      files of the repository outside docs/ that pages link to, with the pages that these link to
    api/NAME.md          the API reference, from docstrings
    assets/              scripts of npm (make docs-site)

Links of pages are written for a reader of the repository; here they are rewritten for the site. A link to a directory leads to its README.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODULES = ROOT / "build" / "docs-site" / "node_modules"
#: Scripts of npm, and their places in the site.
SCRIPTS = {
    "assets/mermaid.min.js": MODULES / "mermaid" / "dist" / "mermaid.min.js",
    "assets/iframe-worker.js": MODULES / "iframe-worker" / "shim" / "index.js",
}
#: What the theme would load from another host for a search in a site that is opened from a directory.
SHIM = re.compile(r"https://unpkg\.com/iframe-worker[^\"']*")
FOREIGN = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc=["']?https?:|<link[^>]*rel=["']?stylesheet["']?[^>]*href=["']?https?:""")
OUTSIDE = "repository"
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)

#: Modules with the methods of the admin clients: those of the blocking one are made from them at run time.
ADMIN = ("topics", "partitions", "configs", "groups", "offset_resets", "transactions", "acls", "users", "tokens", "quotas", "cluster")
#: Pages of the API: title, introduction, and the objects by their full names.
API: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "producer": (
        "Producer",
        "The blocking producer.",
        (
            "ottla.client.sync.producer.Producer", "ottla.client.producer.transactions.ProducerTransactions",
            "ottla.client.producer.batches.RecordMetadata",
        ),
    ),
    "consumer": (
        "Consumer",
        "The blocking consumer, and loops over records.",
        (
            "ottla.client.sync.consumer.Consumer", "ottla.client.sync.consume.consume", "ottla.client.sync.process.process",
            "ottla.client.arrow.tables.read_table", "ottla.client.consumer.record.ConsumerRecord",
            "ottla.client.consumer.rebalance.RebalanceListener",
        ),
    ),
    "admin": (
        "Admin",
        "The methods of `ottla.Admin`, which block, and of `ottla.aio.Admin`, which are awaited. `self` is the client.",
        tuple(f"ottla.client.admin.{name}" for name in ADMIN),
    ),
    "aio": (
        "asyncio",
        "The clients of `ottla.aio`: the same methods, to be awaited.",
        ("ottla.client.producer.producer.Producer", "ottla.client.consumer.consumer.Consumer"),
    ),
    "results": (
        "Results",
        "What the admin client takes and returns, in `ottla.results`.",
        (
            "ottla.client.admin.results", "ottla.client.admin.group_results", "ottla.client.admin.group_lag",
            "ottla.client.admin.cluster_results", "ottla.client.admin.transaction_results", "ottla.client.admin.acl_results",
            "ottla.client.admin.user_results", "ottla.client.admin.quotas",
        ),
    ),
    "errors": ("Errors", "All errors, in `ottla.errors`.", ("ottla.wire.errors", "ottla.client.errors")),
    "testing": ("Testing", "`ottla.testing`: a broker in the process of a test.", ("ottla.testing",)),
}  # fmt: skip


def on_files(files: Any, config: Any) -> Any:
    """Adds what lies outside docs/."""
    from mkdocs.structure.files import File

    pages = {file.src_uri: Path(file.abs_src_path).read_text(encoding="utf-8") for file in files.documentation_pages()}
    wanted = [(f"docs/{uri}", text) for uri, text in pages.items()] + [("README.md", (ROOT / "README.md").read_text(encoding="utf-8"))]
    files.append(File.generated(config, "index.md", content=wanted[-1][1]))
    added: set[str] = {"README.md"}
    todo = ["CHANGELOG.md"]
    while wanted or todo:
        if wanted:
            source, text = wanted.pop()
            todo += [path for path in _targets(source, text) if path not in added and not path.startswith("docs/")]
            continue
        path = todo.pop()
        if path in added:
            continue
        added.add(path)
        file = ROOT / path
        if file.suffix == ".md":
            text = file.read_text(encoding="utf-8")
            wanted.append((path, text))
            files.append(File.generated(config, f"{OUTSIDE}/{path}", content=text))
        else:
            # Browsers show a text, and download a file of Python.
            name = f"{OUTSIDE}/{path}" if file.suffix in (".png", ".svg") else f"{OUTSIDE}/{path}.txt"
            files.append(File.generated(config, name, abs_src_path=str(file)))
    for uri, content in _api_pages().items():
        files.append(File.generated(config, uri, content=content))
    for uri, script in SCRIPTS.items():
        files.append(File.generated(config, uri, abs_src_path=str(script)))
    config.extra_javascript.append("assets/mermaid.min.js")
    return files


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Replaces the script of another host, and refuses any other."""
    from mkdocs.exceptions import PluginError

    up = "../" * page.file.dest_uri.count("/")
    local = SHIM.sub(f"{up}assets/iframe-worker.js", output)
    if foreign := FOREIGN.search(local):
        raise PluginError(f"{page.file.src_uri} loads something from another host: {foreign[0]}")
    return local


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrites links for the site, outside of code blocks."""
    uri = page.file.src_uri
    source = "README.md" if uri == "index.md" else uri.removeprefix(f"{OUTSIDE}/") if uri.startswith(f"{OUTSIDE}/") else f"docs/{uri}"

    def rewritten(link: re.Match[str]) -> str:
        target = _target(source, link[2])
        if target is None:
            return link[0]
        return f"{link[1]}{posixpath.relpath(_site_uri(target), posixpath.dirname(uri) or '.')}{link[3]}"

    return "".join(part if part.startswith("```") else LINK.sub(rewritten, part) for part in FENCE.split(markdown))


def _targets(source: str, text: str) -> list[str]:
    found = (_target(source, link[2]) for part in FENCE.split(text) if not part.startswith("```") for link in LINK.finditer(part))
    return [target for target in found if target is not None]


def _target(source: str, link: str) -> str | None:
    """The file of the repository that a link of a page leads to; None for addresses and for what does not exist."""
    if ":" in link or link.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if (ROOT / path).is_dir():
        return f"{path}/README.md" if (ROOT / path / "README.md").exists() else _listing(path)
    return path if (ROOT / path).is_file() else None


def _listing(directory: str) -> str | None:
    """The first file of a directory without a README."""
    found = sorted(one for one in (ROOT / directory).iterdir() if one.is_file() and one.suffix in (".md", ".py"))
    return found[0].relative_to(ROOT).as_posix() if found else None


def _site_uri(path: str) -> str:
    """Where a file of the repository lies in the site's sources."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{OUTSIDE}/{path}" if path.endswith((".md", ".png", ".svg")) else f"{OUTSIDE}/{path}.txt"


def _api_pages() -> dict[str, str]:
    pages = {
        f"api/{name}.md": f"# {title}\n\n{introduction}\n\n" + "\n".join(f"::: {one}\n" for one in objects)
        for name, (title, introduction, objects) in API.items()
    }
    lines = "\n".join(f"- [{title}]({name}.md): {introduction}" for name, (title, introduction, _) in API.items())
    return {**pages, "api/index.md": f"# API reference\n\nGenerated from docstrings. Guides are in [clients](../clients.md).\n\n{lines}\n"}
