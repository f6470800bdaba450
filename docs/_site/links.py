"""Adds the pages that live beside their subject (README, runbook, benchmarks) to the site, and fixes links to them."""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# By path in the repository: the path on the site.
BESIDE = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "benchmarks.md",
    "calibrators/README.md": "calibrators.md",
    "demo/README.md": "demo.md",
    "deploy/runbook.md": "operate/runbook.md",
}
_SITE = {site: repository for repository, site in BESIDE.items()}
_LINK = re.compile(r'(\]\(|src=")(?![a-z]+:|#)([^)"#\s]+)')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, and the pictures that pages show."""
    for repository, site in BESIDE.items():
        files.append(File.generated(config, site, content=(ROOT / repository).read_text()))
    for picture in (ROOT / "deploy/pages").glob("*.png"):
        files.append(File.generated(config, f"pages/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links that leave docs/, or come from outside, to their place on the site."""
    site = page.file.src_uri
    here = _SITE.get(site, f"docs/{site}")

    def lead(link: re.Match[str]) -> str:
        target = normpath(PurePosixPath(here).parent / link[2])
        on_site = BESIDE.get(target, re.sub("^deploy/pages/", "pages/", target).removeprefix("docs/"))
        return link[1] + relpath(on_site, str(PurePosixPath(site).parent))

    return _LINK.sub(lead, markdown)
