"""Where a reader can run a lesson without installing it: links to Colab, Codespaces and Binder.

Each prepares itself differently. Codespaces reads `.devcontainer/`, and Binder `.binder/`. Colab opens a single
notebook in an empty machine: so it gets the copies of `tools.colab`, which begin with a set-up cell, from a branch.
"""

from __future__ import annotations

import re
from urllib.parse import quote

COLAB_BRANCH = "colab"


def check_repository(repository: str) -> None:
    """Require the name of a repository on GitHub. Raises ValueError for any other text."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ValueError(f"repository must be OWNER/NAME, got {repository!r}")


def book_address(repository: str) -> str:
    """Return the address at which GitHub Pages publishes the book."""
    owner, name = repository.split("/")
    return f"https://{owner.lower()}.github.io/{name}/"


def launch_buttons(repository: str, path: str) -> str:
    """Make the buttons of a page, as MyST. path: of the notebook in the repository."""
    lab = quote(f"lab/tree/{path}", safe="")
    targets = {
        "Colab": f"https://colab.research.google.com/github/{repository}/blob/{COLAB_BRANCH}/{path}",
        "Codespaces": f"https://codespaces.new/{repository}",
        "Binder": f"https://mybinder.org/v2/gh/{repository}/main?urlpath={lab}",
    }
    buttons = (f"```{{button-link}} {url}\n:color: primary\n:outline:\n{name}\n```" for name, url in targets.items())
    return ":::{div} launch\n" + "\n".join(buttons) + "\n:::"
