"""The doctor's lines on a machine: Triton, Numba, the device, bf16."""

from __future__ import annotations

from types import SimpleNamespace

import numba
import pytest
import torch
from absent import distribution_missing

from roseinfer import doctor, hardware


@pytest.mark.parametrize(("system", "fix"), [("linux", doctor.SET_UP), ("darwin", "Linux only")])
def test_triton_missing(monkeypatch, system, fix):
    distribution_missing(monkeypatch, "triton")
    monkeypatch.setattr(doctor.sys, "platform", system)
    check = doctor.probe_triton()
    assert check.status == "missing" and not check.required and fix in check.fix


@pytest.fixture
def triton_on_a_gpu(monkeypatch, tmp_path):
    """Triton with everything that it needs; a test takes something away."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(doctor, "installed_version", lambda name: "3.7.1")
    monkeypatch.setattr(doctor, "cuda_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("ROSEINFER_TRITON", raising=False)
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


def test_triton_compiled_or_interpreted(triton_on_a_gpu, monkeypatch):
    check = doctor.probe_triton()
    assert (check.found, check.status, check.fix) == ("3.7.1, compiled", "ok", "")
    monkeypatch.setattr(doctor, "cuda_available", lambda: False)
    check = doctor.probe_triton()
    assert (check.found, check.status) == ("3.7.1, interpreter", "note") and "none needed" in check.fix


@pytest.mark.parametrize(("variable", "value"), [("TRITON_INTERPRET", "1"), ("ROSEINFER_TRITON", "interpret")])
def test_triton_interpreted_by_choice(triton_on_a_gpu, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    check = doctor.probe_triton()
    assert (check.found, check.fix) == ("3.7.1, interpreter", f"unset {variable}")


def test_triton_without_what_it_compiles_with(triton_on_a_gpu, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    check = doctor.probe_triton()
    assert (check.found, check.status) == ("3.7.1, no C compiler", "note") and "build-essential" in check.fix
    monkeypatch.setenv("CC", "mycc")
    assert doctor.probe_triton().status == "ok"
    (triton_on_a_gpu / "Python.h").unlink()
    check = doctor.probe_triton()
    assert (check.found, check.status) == ("3.7.1, no Python.h", "note") and "python3-dev" in check.fix


def test_numba_in_its_range():
    check = doctor.probe_numba()
    assert (check.status, check.required) == ("ok", True)
    assert check.found.startswith(f"{numba.__version__}, ") and check.found.endswith(("thread", "threads"))


@pytest.mark.parametrize(
    ("attribute", "value", "found", "fix"),
    [
        ((numba, "__version__"), "0.1.0", "0.1.0", doctor.SET_UP),
        ((numba.config, "DISABLE_JIT"), 1, f"{numba.__version__}, disabled", "unset NUMBA_DISABLE_JIT"),
    ],
    ids=["too old", "disabled"],
)
def test_a_numba_that_was_not_tested_or_compiles_nothing(monkeypatch, attribute, value, found, fix):
    monkeypatch.setattr(doctor, "supported_range", lambda name: ">=0.61")
    monkeypatch.setattr(*attribute, value)
    check = doctor.probe_numba()
    assert (check.status, check.found, check.fix) == ("note", found, fix)


def test_device_gpu(monkeypatch):
    gpu = SimpleNamespace(name="GPU X", total_memory=80 * 2**30)
    monkeypatch.setattr(doctor, "cuda_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert doctor.probe_device().found == "GPU X, 80 GiB, 2 in all"


@pytest.mark.parametrize(
    ("driver", "cpu_only", "status", "fix"),
    [
        (None, True, "ok", ""),
        ("/bin/smi", True, "note", "CPU-only index"),
        ("/bin/smi", False, "note", "driver"),
    ],
)
def test_device_cpu(monkeypatch, driver, cpu_only, status, fix):
    monkeypatch.setattr(doctor, "cuda_available", lambda: False)
    monkeypatch.setattr(doctor, "cpu", lambda: ("CPU X", frozenset()))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: driver)
    monkeypatch.setattr(doctor, "torch_is_cpu_only", lambda: cpu_only)
    monkeypatch.setattr(doctor, "num_threads", lambda: 7)
    check = doctor.probe_device()
    assert check.found.startswith("CPU X, 7 threads, ")
    assert check.status == status and fix in check.fix


@pytest.mark.parametrize(
    ("features", "found", "fix"),
    [
        ({"avx512_bf16", "amx_bf16", "avx2"}, "native (amx_bf16, avx512_bf16)", ""),
        ({"bf16", "asimd"}, "native (bf16)", ""),
        ({"avx2"}, "emulated (CPU)", "use float32, or float16 on a GPU"),
    ],
)
def test_bf16_on_a_cpu(monkeypatch, features, found, fix):
    monkeypatch.setattr(doctor, "cuda_available", lambda: False)
    monkeypatch.setattr(doctor, "cpu", lambda: ("CPU X", frozenset(features)))
    check = doctor.probe_bf16()
    assert (check.found, check.fix) == (found, fix)


def test_bf16_on_a_gpu(monkeypatch):
    monkeypatch.setattr(doctor, "cuda_available", lambda: True)
    for native, found in ((True, "native (GPU)"), (False, "emulated (GPU)")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, native=native: native)
        assert doctor.probe_bf16().found == found


@pytest.fixture
def another_cpu(monkeypatch, tmp_path):
    """system, /proc/cpuinfo and sysctl's answers -> the CPU's name and features there."""

    def ask(system, cpuinfo=None, answers=None):
        file = tmp_path / "cpuinfo"
        if cpuinfo is not None:
            file.write_text(cpuinfo)
        monkeypatch.setattr(hardware, "CPUINFO", file)
        monkeypatch.setattr(hardware.sys, "platform", system)
        monkeypatch.setattr(hardware, "_sysctl", (answers or {}).get)
        monkeypatch.setattr(hardware.platform, "processor", lambda: "")
        monkeypatch.setattr(hardware.platform, "machine", lambda: "riscv64")
        return hardware.cpu.__wrapped__()

    return ask


def test_cpus(another_cpu):
    assert another_cpu("linux") == ("riscv64", frozenset())
    named = "processor\t: 0\nmodel name\t: CPU X\nflags\t\t: fpu amx_bf16\n\nprocessor\t: 1\nmodel name\t: CPU Y\n"
    assert another_cpu("linux", named) == ("CPU X", frozenset({"fpu", "amx_bf16"}))
    assert another_cpu("linux", "Features\t: fp bf16\n") == ("riscv64", frozenset({"fp", "bf16"}))
    answers = {"machdep.cpu.brand_string": "Apple X", "hw.optional.arm.FEAT_BF16": "1"}
    assert another_cpu("darwin", answers=answers) == ("Apple X", frozenset({"bf16"}))


def test_a_triton_variable_that_means_nothing_is_named(monkeypatch):
    monkeypatch.setenv("ROSEINFER_TRITON", "foo")
    check = doctor.probe_triton()
    assert (check.found, check.status, check.required) == ("ROSEINFER_TRITON=foo", "missing", True)
    assert "interpret or compile" in check.fix
