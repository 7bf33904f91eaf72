"""Put the address of the repository into what a release publishes: ``python tools/release_metadata.py URL TAG``.

Links of the README are relative, so that they work in every clone and fork. A package index shows the README without
the files that they lead to. The release knows where it runs, so it writes the address, which is then always true.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?P<image>!?)(?P<text>\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>(?!https?://|#)[^)\s]+)\)")


def absolute(readme: str, url: str, tag: str) -> str:
    """Return a README whose links and pictures do not depend on where it is read."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found["image"] else "blob"
        return f"{found['image']}{found['text']}({url}/{kind}/{tag}/{found['target']})"

    return _LINK.sub(link, readme)


def urls(url: str, tag: str) -> str:
    """Return the table of addresses for pyproject.toml."""
    pages = {
        "Homepage": url,
        "Documentation": f"{url}/blob/{tag}/docs/index.md",
        "Changelog": f"{url}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{url}/issues",
        "Security": f"{url}/security/policy",
    }
    return "\n[project.urls]\n" + "".join(f'{name} = "{page}"\n' for name, page in pages.items())


def main() -> None:
    """Rewrite README.md and pyproject.toml in place."""
    url, tag = sys.argv[1].rstrip("/"), sys.argv[2]
    readme, project = ROOT / "README.md", ROOT / "pyproject.toml"
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), url, tag), encoding="utf-8")
    project.write_text(project.read_text(encoding="utf-8") + urls(url, tag), encoding="utf-8")


if __name__ == "__main__":
    main()
