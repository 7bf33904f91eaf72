"""Pages of the site that are made from files outside of docs/: a hook of mkdocs.

Pages link to files of the repository (``../CONTRIBUTING.md``, ``../examples/demo.py``), because that is where people
read them before there is a site. On the site, each project file becomes a page, all examples become one page, and other
files become a link into the repository, if its address is known, or plain text.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PROJECT_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",
}
EXAMPLES = "examples.md"
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_RELEASE = re.compile(r"^\[(?P<name>[\w.-]+)\]: \.\./\.\./(?P<path>\S+)$", re.MULTILINE)
_DIAGRAM = re.compile(r"^```mermaid\n(?P<source>.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Put every design note into the navigation, so that a new one needs no entry."""
    notes = [f"design/{path.name}" for path in sorted((ROOT / "docs/design").glob("*.md"))]
    project = next(entry["Project"] for entry in config["nav"] if isinstance(entry, dict) and "Project" in entry)
    next(entry for entry in project if "Design notes" in entry)["Design notes"] = notes
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each project file, and one with all examples."""
    for source, page in PROJECT_PAGES.items():
        if source != "README.md":
            text = (ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, EXAMPLES, content=_examples()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page that lead out of docs/."""
    uri = page.file.src_uri
    origins = {site: source for source, site in PROJECT_PAGES.items() if source != "README.md"}
    folder = posixpath.dirname(origins.get(uri, f"docs/{uri}"))
    markdown = _with_pictures(markdown, page, files)
    parts = _FENCE.split(_with_releases(markdown, config["repo_url"]))

    def rewritten(link: re.Match[str]) -> str:
        target, hash_, anchor = link["target"].partition("#")
        if "://" in target or not target:
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        place = _on_site(path, files)
        if place is not None:
            anchor = anchor or (Path(path).name.replace(".", "") if place == EXAMPLES and path != "examples" else "")
            relative = posixpath.relpath(place, posixpath.dirname(uri) or ".")
            return f"{link['image']}[{link['text']}]({relative}{'#' if anchor else ''}{anchor})"
        if config["repo_url"]:
            return f"[{link['text']}]({config['repo_url'].rstrip('/')}/blob/HEAD/{path}{hash_}{anchor})"
        return link["text"]

    # ``datetime64[D] [B]`` is a type and a shape. With a plugin that resolves references, it would be a link.
    return "".join(
        part if part.startswith("```") else _LINK.sub(rewritten, part).replace("] [", "] \\[") for part in parts
    )


def _with_pictures(markdown: str, page: Any, files: Any) -> str:
    """Return a page with pictures of its diagrams, as far as tools/render_diagrams.py has rendered them."""

    def picture(diagram: re.Match[str]) -> str:
        place = f"img/diagrams/{hashlib.sha256(diagram['source'].encode()).hexdigest()[:12]}.svg"
        if files.get_file_from_path(place) is None:
            return diagram[0]
        # Relative to the page in docs/: links are rewritten for the site after this.
        target = posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")
        return f"![Diagram: {page.title or page.file.src_uri}]({target}){{ .diagram }}"

    return _DIAGRAM.sub(picture, markdown)


def _with_releases(markdown: str, repo_url: str | None) -> str:
    """Return a changelog whose links to releases, relative to a file of the repository, work on the site as well."""
    if repo_url:
        return _RELEASE.sub(rf"[\g<name>]: {repo_url.rstrip('/')}/\g<path>", markdown)
    for release in _RELEASE.finditer(markdown):
        markdown = markdown.replace(f"## [{release['name']}]", f"## {release['name']}").replace(release[0], "")
    return markdown


def _on_site(path: str, files: Any) -> str | None:
    """Return where a file of the repository is on the site, if it is there."""
    if path in PROJECT_PAGES:
        return PROJECT_PAGES[path]
    if path == "examples" or path.startswith("examples/"):
        return EXAMPLES
    inside = path.removeprefix("docs/")
    return inside if path.startswith("docs/") and files.get_file_from_path(inside) is not None else None


def _examples() -> str:
    """Return all examples with their code; the first line of each says what it shows."""
    parts = ["# Examples\n\nWhole scripts of less than 80 lines. The tests run each of them.\n"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        code = path.read_text(encoding="utf-8")
        parts.append(f"## `{path.name}` {{ #{path.name.replace('.', '')} }}\n\n```python\n{code.rstrip()}\n```\n")
    return "\n".join(parts)
