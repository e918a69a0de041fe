"""How Sphinx makes a site of this folder: `make docs`. Pages stay readable where they lie."""

import importlib.metadata
import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.ext.napoleon.docstring import GoogleDocstring

import rankscope.rules
import rankscope.store

DOCS = Path(__file__).parent
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
SCHEMA = DOCS.parent / "config" / "config.schema.json"
FOLDERS = {"quantities": "quantities", "decisions/README": "decisions"}
"""Pages that have a folder of pages below them, which the menu shows there."""

project = "rankscope"
copyright = "the authors of rankscope"
release = importlib.metadata.version("rankscope")
html_title = f"rankscope {release}"
html_theme = "furo"
html_extra_path = [str(SCHEMA)]
# Messages and commands are copied.
smartquotes = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click"]

# Links to headings go by their text, as on GitHub.
myst_heading_anchors = 4
# What stands between single back ticks in a docstring is code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"


def setup(app: Sphinx) -> None:
    # What a face loads when it is first asked for is else no member of it.
    for face in (rankscope.rules, rankscope.store):
        vars(face).update({name: getattr(face, name) for name in face.__all__})
    app.connect("source-read", complete)
    app.connect("autodoc-process-docstring", translate)


def complete(app: Sphinx, page: str, source: list[str]) -> None:
    """Add what GitHub needs not: the menus that follow from the lists of pages."""
    folder = (DOCS / page).parent
    text = source[0]
    if page == "index":
        text = re.sub(r"(?ms)^## (.*?)\n.*?(?=^## |\Z)", with_menu, text)
    if page in FOLDERS:
        text += menu([f"/{FOLDERS[page]}/*"], option="glob:")
    source[0] = LINK.sub(lambda link: within(folder, link), text)


def with_menu(section: re.Match[str]) -> str:
    """A section of the index with a menu of the pages that it lists."""
    pages = re.findall(r"(?m)^\| \[[^]]+\]\(([^)]+)\)", section[0])
    return section[0] + menu(pages, option=f"caption: {section[1]}")


def menu(pages: list[str], option: str) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", f":{option}", *pages, "```", ""])


def within(folder: Path, link: re.Match[str]) -> str:
    """The link, or its text alone if it leads out of the site: there is no address for that yet."""
    target = (folder / link[2]).resolve()
    if target == SCHEMA:
        up = "../" * len(folder.relative_to(DOCS).parts)
        return f'<a href="{up}{SCHEMA.name}">{link[1]}</a>'
    is_outside = ":" not in link[2] and not target.is_relative_to(DOCS)
    return link[1] if is_outside and target.exists() else link[0]  # Sphinx warns of the others


def translate(
    app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]
) -> None:
    """Make reStructuredText of a docstring, in which back ticks are all the markup there is."""
    text = re.sub(r"(`[^`]*`)|([*|])", lambda at: at[1] or f"\\{at[2]}", "\n".join(lines))
    # An indented block after an empty line is code, as in Markdown.
    text = re.sub(r"(?m)^(?! )(.+)\n\n(?=    )", r"\1\n\n::\n\n", text)
    # Napoleon takes what is before the colon in an attribute's docstring for its type.
    if what not in ("attribute", "data", "property"):
        text = str(GoogleDocstring(text, name=name, obj=found))
    lines[:] = [*text.splitlines(), ""]
