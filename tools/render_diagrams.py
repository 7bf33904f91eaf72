"""Render the Mermaid diagrams of the documentation: ``python tools/render_diagrams.py path/to/mermaid.min.js``.

A diagram is written in its page, where code hosts render it. The site shows a picture that was rendered before, so that
neither the build nor a reader needs a script from another server. A picture is named by a hash of its source, so a
diagram that was changed never shows an old picture: until it is rendered, the site shows it with Mermaid itself, and a
test names it. Needs Chromium, and ``npm install mermaid``.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/img/diagrams"
_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PAGE = """<!doctype html><meta charset="utf-8"><body><script src="{script}"></script><script>
mermaid.initialize({{startOnLoad: false, theme: "neutral", fontFamily: "DejaVu Sans, Verdana, sans-serif",
                    flowchart: {{useMaxWidth: true, wrappingWidth: 300}}}});
(async () => {{
  const sources = {sources}, made = {{}};
  for (const [name, source] of Object.entries(sources)) {{
    const holder = document.createElement("div");
    holder.innerHTML = (await mermaid.render("d" + name, source)).svg;
    made[name] = new XMLSerializer().serializeToString(holder.firstElementChild);
  }}
  document.body.innerHTML = "<pre id='made'></pre>";
  document.getElementById("made").textContent = JSON.stringify(made);
}})();
</script>"""


def name_of(source: str) -> str:
    """Return the name of a diagram: a hash of its source."""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def diagrams() -> dict[str, str]:
    """Return all diagrams of the documentation, by name."""
    texts = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").rglob("*.md"))]
    return {name_of(source): source for text in texts for source in _DIAGRAM.findall(text)}


def render(sources: dict[str, str], script: Path) -> dict[str, str]:
    """Return the pictures, by name."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(_PAGE.format(script=script.resolve().as_uri(), sources=json.dumps(sources)), encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom"]
        command = ["chromium", *options, f"--user-data-dir={folder}/profile", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)  # noqa: S603
    found = re.search(r'<pre id="made">(.*?)</pre>', done.stdout, re.DOTALL)
    if found is None:
        raise SystemExit("nothing was rendered: is there an error in a diagram?")
    made: dict[str, str] = json.loads(html.unescape(found[1]))
    return made


def main() -> None:
    """Render what is new, and remove pictures of diagrams that no longer exist."""
    sources = diagrams()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.svg"):
        if path.stem not in sources:
            path.unlink()
    for name, picture in render(sources, Path(sys.argv[1])).items():
        (FOLDER / f"{name}.svg").write_text(picture + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
