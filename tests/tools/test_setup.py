"""Set-up: that every list of dependencies says the same, and what the Makefile runs."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from roseinfer.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
TARGETS = {
    "help",
    "setup",
    "lab",
    "check",
    "test",
    "ladder",
    "reproduce",
    "notebooks",
    "doctor",
    "gpu-report",
    "tensorboard",
    "tiny",
    "slides",
    "nightly",
    "book",
    "check-links",
    "clean",
    "peers",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LAYERS = {"engine": PROJECT["dependencies"], **EXTRAS}  # each holds what is first needed there
DEPENDENCIES = {canonicalize_name(r.name): r for lines in LAYERS.values() for r in map(Requirement, lines)}
PEERS = ROOT / "roseinfer" / "bench" / "peers"
IN_THE_PEERS_ENVIRONMENT = (PEERS / "serve.py", PEERS / "gguf_file.py", *PEERS.glob("*_peer.py"))
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]


def make(*args, **environment):
    """`make ARGS` in the repository, with nothing active unless `environment` says so."""
    # MAKELEVEL too: below `make test` this make would announce the directory it is in.
    active = ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHON", "MAKEFLAGS", "MAKELEVEL", "OMP_NUM_THREADS")
    clean = {k: v for k, v in os.environ.items() if k not in active} | environment
    return subprocess.run(["make", *args], cwd=ROOT, env=clean, capture_output=True, text=True, check=True).stdout


# The lists of dependencies


def test_environment_yml_names_what_pyproject_names():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    assert pip[0] == "-c constraints.txt"
    assert {str(Requirement(line)) for line in pip[1:]} == {str(r) for r in DEPENDENCIES.values()}
    assert f"python{PROJECT['requires-python']}" in conda


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("system", ["Linux", "Darwin"])
def test_every_dependency_has_one_pin_inside_its_range(python, system):
    def applies(r):
        return r.marker is None or r.marker.evaluate({"python_version": python, "platform_system": system})

    pins = [(canonicalize_name(r.name), r.specifier) for r in PINS if applies(r)]
    assert len(pins) == len(dict(pins)), "two pins for one package"
    wanted = {name: r.specifier for name, r in DEPENDENCIES.items() if applies(r)}
    assert wanted.keys() <= dict(pins).keys()
    for name, specifier in wanted.items():
        (pin,) = dict(pins)[name]
        assert pin.operator == "==" and specifier.contains(pin.version), f"{name}: {pin} is not in {specifier}"


def test_python_range():
    assert all(SpecifierSet(PROJECT["requires-python"]).contains(python) for python in PYTHONS)


def imports(path):
    """(package, whether it is imported when the module is loaded) of each import, not in a function nor for types."""
    todo = [(node, True) for node in ast.parse(path.read_text()).body]
    while todo:
        node, on_loading = todo.pop()
        checked_only = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        on_loading = on_loading and not checked_only and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], on_loading) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0], on_loading
        todo += [(child, on_loading) for child in ast.iter_child_nodes(node) if isinstance(child, BLOCKS)]


BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)  # what may hold an import


def test_a_package_stands_in_one_layer():
    assert list(EXTRAS) == ["structured", "gguf", "serve", "scale", "course", "dev"]
    assert sum(map(len, LAYERS.values())) == len(DEPENDENCIES)


ENGINE = (
    "paths",
    "arguments",
    "hardware",
    "sequence",
    "blocks",
    "sampling",
    "stage",
    "generate",
    "reference",
    "models",
    "kernels",
    "profiling",
    "engine",
)


def layer_of(path, on_loading):
    """The layer in which a module's imports have to be; of those that wait for a call, one further out will do."""
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    if folder == "stages" or (folder == "roseinfer" and (on_loading and rest[0] in ENGINE or rest[0] == "__init__")):
        return "engine"
    return "course" if folder in ("roseinfer", "course") else "dev"


@pytest.mark.slow
def test_what_is_imported_is_declared_in_its_layer():
    files = {p for folder in ("roseinfer", "course", "stages", "tools", "tests") for p in (ROOT / folder).rglob("*.py")}
    files -= {*IN_THE_PEERS_ENVIRONMENT, ROOT / "tests" / "bench" / "offline" / "fake_peer.py"}
    known = {"roseinfer", "course", "stages", "tools", "tomli"}  # tomli: declared for Python 3.10 only
    known |= sys.stdlib_module_names | {p.stem for p in (ROOT / "tests").rglob("*") if p.suffix in ("", ".py")}
    distributions = importlib.metadata.packages_distributions()
    declared, reached = set(), {}  # reached: all that a layer may import, its own and what the layers before it have
    for layer, lines in LAYERS.items():
        declared |= {canonicalize_name(Requirement(line).name) for line in lines}
        reached[layer] = set(declared)
    undeclared = {
        f"{path.relative_to(ROOT)} imports {name}, which is not declared for {layer_of(path, on_loading)}"
        for path in files
        for name, on_loading in imports(path)
        if name not in known
        and not {canonicalize_name(d) for d in distributions.get(name, [name])} & reached[layer_of(path, on_loading)]
    }
    assert not undeclared


def test_what_peers_import_is_pinned_in_their_own_list():
    lines = (ROOT / "tools/shell/peers.txt").read_text().splitlines()
    pinned = {canonicalize_name(Requirement(line.split("#")[0]).name) for line in lines if line.split("#")[0].strip()}
    imported = {name for path in IN_THE_PEERS_ENVIRONMENT for name, _ in imports(path)}
    theirs = imported - sys.stdlib_module_names - {"serve", "gguf_file"}
    others = {name.replace("llama_cpp", "llama_cpp_python") for name in theirs}
    assert len(IN_THE_PEERS_ENVIRONMENT) == 4 and {canonicalize_name(name) for name in others} == pinned


# The Makefile


def test_every_target_is_in_help():
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE))
    shown = set(re.findall(r"^  make (\S+)", make("help"), re.MULTILINE))
    declared = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())
    assert targets == shown == declared == TARGETS
    assert make() == make("help")


@pytest.mark.parametrize("target", sorted(TARGETS - {"help", "clean", "setup"}))
def test_every_target_sets_up_first(target):
    assert "sh tools/shell/setup.sh" in make("-n", target).splitlines()[0]


def test_make_test_lints_tests_and_runs_the_notebooks():
    checked = make("-n", "check").splitlines()
    _, lint, formatted, types, quick, both = checked
    lines = make("-n", "test").splitlines()
    assert lines[: len(checked)] == checked
    chromium, tests, alone, notebooks = lines[len(checked) :]
    assert lint.endswith("-m ruff check")
    assert formatted.endswith("-m ruff format --check")
    assert types.endswith("-m mypy & types=$!; \\") and both.startswith("wait $types ||")
    assert chromium == "sh tools/shell/browser.sh"
    notebook_workers = "-m pytest -n logical --maxprocesses 8 --dist loadscope"
    workers = f"{notebook_workers} -p no:nbval -p no:schemathesis"
    assert quick.endswith(
        f'{workers} -m "not slow and not browser and not gpu and not nightly" tests && tested=yes; \\'
    )
    assert tests.endswith(f'{workers} -m "(slow or browser) and not alone and not nightly" tests')
    files = "-m pytest $(grep -rl --include='*.py' mark.alone tests)"
    assert alone.endswith(f'{files} -m "alone and not nightly"')
    assert notebooks.endswith(f'{notebook_workers} --nbval -m "not nightly" notebooks')
    assert all(line.startswith("PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 ") for line in (quick, tests, notebooks))
    assert "OMP_NUM_THREADS=4 " in make("-n", "test", OMP_NUM_THREADS="4")


def test_make_nightly_runs_what_make_test_leaves_out():
    of_test = make("-n", "test").splitlines()
    lines = make("-n", "nightly").splitlines()
    assert lines[: len(of_test)] == of_test
    left_out, alone, notebooks, *others = lines[len(of_test) :]
    assert left_out.endswith('-m "nightly and not alone" tests')
    assert alone.endswith('-m "nightly and alone"') and notebooks.endswith("--nbval notebooks")
    assert [line.partition(" -m ")[2] for line in others] == [
        "tools.mutants",
        "tools.book",
        "roseinfer slides notebooks/*.ipynb",
    ]


def test_make_lab_opens_the_first_lesson():
    shown = make("-n", "lab", "LAB_ARGS=--no-browser")
    assert "/lab/tree/notebooks/00_start_here.ipynb --no-browser" in shown
    assert "/.jupyter" in shown
    assert list((ROOT / ".jupyter" / "labconfig").iterdir())
    assert f'JUPYTER_PATH="{ROOT}/.jupyter' in shown  # the extension that draws frames
    assert list((ROOT / ".jupyter" / "labextensions").glob("*/package.json"))


def test_arguments_are_passed_on():
    assert make("-n", "ladder", "ARGS=--model tiny").strip().endswith("-m roseinfer ladder --model tiny")
    assert 'PYTHON="python3.12" PIP_ARGS="-v"' in make("-n", "setup", PYTHON="python3.12", PIP_ARGS="-v")


@pytest.mark.parametrize(
    ("active", "used"),
    [
        ({}, f"{ROOT}/.venv"),
        ({"VIRTUAL_ENV": "/env/a b"}, "/env/a b"),
        ({"CONDA_PREFIX": "/conda/envs/rose", "CONDA_DEFAULT_ENV": "rose"}, "/conda/envs/rose"),
        ({"CONDA_PREFIX": "/conda", "CONDA_DEFAULT_ENV": "base"}, f"{ROOT}/.venv"),
        ({"VIRTUAL_ENV": "/env/v", "CONDA_PREFIX": "/conda/envs/rose"}, "/env/v"),
    ],
)
def test_which_environment_is_used(active, used):
    setup, doctor = make("-n", "doctor", **active).splitlines()
    assert f'ENV_DIR="{used}"' in setup and doctor.startswith(f'"{used}/bin/python" -m roseinfer doctor')


def test_ci_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash" and "set -euo pipefail" in lines and "make test" in lines[-1]
