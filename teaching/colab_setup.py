"""What a Colab session needs for the lessons, in the versions of constraints.txt; run by its first cell:

!test -d roseinfer || git clone --depth 1 https://github.com/OWNER/REPOSITORY roseinfer
%run roseinfer/teaching/colab_setup.py
"""

import re
import subprocess
import sys
from pathlib import Path

import tomllib

COURSE = Path(__file__).resolve().parents[1]
# Colab's own pages run on its versions of the first line, and the lessons only need that they are there. The others are
# for slides and TensorBoard.
LEFT_ALONE = {
    "ipython",
    "ipykernel",
    "ipywidgets",
    "jupyterlab",
    "nbformat",
    "nbconvert",
    "mistune",
    "latex2mathml",
    "pyreveal",
    "tensorboard",
    "torch-tb-profiler",
}


def needed(project):
    """Return the lines of pyproject.toml that Colab needs: of the engine, the course and the server (lesson 20)."""
    extras = project["optional-dependencies"]
    lines = project["dependencies"] + extras["course"] + extras["serve"]
    return [line for line in lines if re.match(r"[\w.-]+", line)[0] not in LEFT_ALONE]


def main():
    loaded = sys.modules.keys() & {"numpy", "pandas", "torch"}
    project = tomllib.loads((COURSE / "pyproject.toml").read_text())["project"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "-c", str(COURSE / "constraints.txt")]
    subprocess.run([*pip, *needed(project)], check=True)
    sys.path.insert(0, str(COURSE))
    if loaded:
        print("Runtime > Restart session, then run this cell once more: other versions of", *loaded, "are loaded.")


if __name__ == "__main__":
    main()
