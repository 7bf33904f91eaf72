"""Follow every internal link of the built site, anchors included: ``python tools/check_links.py site``.

The build itself checks links of pages. This sees what the build has made of them, and what docstrings link to.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect links and anchors."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag != "base":
            self.links |= {values[name] for name in ("href", "src") if name in values}


def target_of(link: str, page: Path, site: Path) -> Path:
    """Return the file that a link leads to."""
    path = unquote(urlsplit(link).path)
    place = (site / path.lstrip("/") if path.startswith("/") else page.parent / path).resolve() if path else page
    return place / "index.html" if place.is_dir() else place


def dead_links(site: Path) -> list[str]:
    """Return all internal links that lead nowhere, each with its page."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    dead = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are made for the place where the site will be
            continue
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = target_of(link, path, site)
            known = pages[target].anchors if target in pages else {"", unquote(parts.fragment)}
            if not target.exists() or unquote(parts.fragment) not in known:
                dead.append(f"{path.relative_to(site)}: {link}")
    return dead


def main() -> int:
    """Print dead links; return 1 if there are any."""
    dead = dead_links(Path(sys.argv[1]).resolve())
    print("\n".join(dead) or "every internal link leads somewhere")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
