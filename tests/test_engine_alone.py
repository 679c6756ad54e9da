"""`pip install .` brings the engine: it loads and decodes where no package of the course's can be found."""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions

import pytest
from fresh_python import printed_by
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from roseinfer.paths import ROOT

pytestmark = pytest.mark.slow


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ALONE = """
import sys
from importlib.machinery import PathFinder

class WithoutTheCourse(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {absent} else super().find_spec(name, path, target)

sys.meta_path = [WithoutTheCourse if finder is PathFinder else finder for finder in sys.meta_path]
try:
    import pandas
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("pandas was to be hidden")
"""
GENERATES = """
import importlib
for name in {modules}:
    importlib.import_module(name)
import roseinfer, stages
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.generate import generate
from roseinfer.reference import reference_generate

model, tokenizer = roseinfer.load_model("tiny"), roseinfer.load_tokenizer("tiny")
prompts = [tokenizer.encode(text).ids for text in ("Return a new", "None")]
wanted = reference_generate(model, prompts, 5)
params = roseinfer.SamplingParams(max_tokens=5, ignore_eos=True)
for stage in (stages.NaiveCat, stages.BlockTableCache):
    done = generate(stage(model, num_blocks=16, block_size=16), prompts, params)
    assert [seq.output_ids for seq in done] == wanted, stage
assert PlannedEngine(model="tiny", num_blocks=8).sizes().total_bytes > 0
"""
ROOMS = ("models", "kernels", "profiling", "engine", "planning", "llm")
FILES = ("arguments", "blocks", "generate", "hardware", "paths", "reference", "sampling", "sampling_params")
FILES += ("sequence", "stage", "structured_outputs")


def of_the_course() -> set[str]:
    """The top-level modules of packages that the engine's layer does not bring, as far as they are installed."""
    names = {
        canonicalize_name(Requirement(line).name)
        for lines in PROJECT["optional-dependencies"].values()
        for line in lines
    } - needed_by(PROJECT["dependencies"]).keys()
    return {
        module
        for module, owners in packages_distributions().items()
        if {canonicalize_name(owner) for owner in owners} <= names
    }


def needed_by(lines: list[str]) -> dict[str, Distribution]:
    """By name, the installed distributions that these requirements name, and what those need in turn."""
    found: dict[str, Distribution] = {}
    wanted = [Requirement(line) for line in lines]
    while wanted:
        one = wanted.pop()
        name = canonicalize_name(one.name)
        if name in found or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # of another system, such as a GPU's libraries
            continue
        wanted += map(Requirement, found[name].requires or [])
    return found


def test_the_engine_needs_nothing_of_the_course():
    absent = of_the_course()
    assert absent >= {
        "pandas",
        "duckdb",
        "matplotlib",
        "altair",
        "vl_convert",
        "IPython",
        "ipywidgets",
        "nbformat",
        "nbclient",
        "pytest",
        "hypothesis",
    }
    paths = [path for room in ROOMS for path in (ROOT / "roseinfer" / room).rglob("*.py")]
    paths += [ROOT / "roseinfer" / f"{name}.py" for name in FILES]
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    printed_by(ALONE.format(absent=absent) + GENERATES.format(modules=modules))


def test_roseinfer_itself_imports_nothing_heavy():
    heavy = {"torch", "transformers", "tqdm", "numpy", *of_the_course()}
    assert printed_by(f"import sys, roseinfer; print({heavy} & sys.modules.keys())") == "set()\n"


def test_the_cases_of_a_gpu_need_pytest_and_nothing_of_the_course():
    """So `make gpu-report` runs them on a machine that has no more than that."""
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*_on_devices.py"))
    flags = ["-q", "-m", "gpu", "--collect-only", "--confcutdir=tests", "-p", "no:cacheprovider"]
    code = f"import pytest; print('status', pytest.main({flags + files}))"
    absent = of_the_course() - {"pytest", "_pytest", "py"}
    printed = printed_by(ALONE.format(absent=absent) + code, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "status 0" in printed
    assert all(f"{file}::" in printed for file in files), printed


def test_no_text_is_taken_from_the_running_python():
    """Its documentation changes with its version, and so would every prompt that is cut from it. Only the script that
    trains the bundled model reads it, and names the version."""
    roots = ("roseinfer", "course", "stages", "tools", "notebooks")
    paths = [path for root in roots for suffix in ("py", "ipynb") for path in (ROOT / root).rglob(f"*.{suffix}")]
    reading = [path.name for path in paths if "pydoc_data" in path.read_text(encoding="utf-8")]
    assert sorted(reading) == ["documentation.py", "train_tiny.py"], "documentation.py names it as the text's source"
