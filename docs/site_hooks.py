"""Hooks of mkdocs: links from docs/ into the rest of the repository become pages or plain files of the site.

Pages link to README.md, results and examples by their place in the repository, so that they work where the files are
read; the site takes these files in under ``repository/``.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from mkdocs.structure.files import File, Files

OUTSIDE = "repository"
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")


def on_files(files: Files, config: Any) -> Files:
    """Take in every file outside docs/ that a page links to; a link to nothing stays, and fails the build."""
    root = posixpath.dirname(config["docs_dir"].replace("\\", "/"))
    wanted = set()
    for file in list(files.documentation_pages()):
        for found in _LINK.finditer(file.content_string):
            place = _place(file.src_uri, found[2])
            if place is not None:
                wanted.add(place)
    for place in sorted(wanted):
        try:
            with open(f"{root}/{place}", encoding="utf-8") as source:
                files.append(File.generated(config, _name(place), content=source.read()))
        except (FileNotFoundError, IsADirectoryError):
            continue
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links that leave docs/ to the files taken in."""
    here = page.file.src_uri
    if here.startswith(f"{OUTSIDE}/"):
        return _LINK.sub(lambda found: found[0] if "://" in found[2] else "]", markdown)  # their own links lead nowhere

    def pointed(found: re.Match[str]) -> str:
        place = _place(here, found[2])
        if place is None or files.get_file_from_path(_name(place)) is None:
            return found[0]
        target = posixpath.relpath(_name(place), posixpath.dirname(here) or ".")
        return f"{found[1]}{target}{found[3] or ''}{found[4]}"

    return _LINK.sub(pointed, markdown)


def _place(page: str, link: str) -> str | None:
    """Return the path in the repository of a link that leaves docs/, or None for all others."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if place.startswith(("docs/", "..")) else place


def _name(place: str) -> str:
    return f"{OUTSIDE}/{place}" if place.endswith(".md") else f"{OUTSIDE}/{place}.txt"
