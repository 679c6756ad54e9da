"""GPUs that lack something, tried on a machine without one: the answers of torch.cuda are replaced."""

from __future__ import annotations

import pytest
import torch

from roseinfer import doctor
from roseinfer.cli.main import main
from roseinfer.kernels import triton_mode
from roseinfer.models import ModelLoadError, load_model
from roseinfer.models import load as load_module
from roseinfer.models import shapes as shapes_module

T4, P100, A100 = (7, 5), (6, 0), (8, 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """Returns a function that puts a GPU of that capability and name here."""

    def put(capability: tuple[int, int], name: str) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (10**12, 10**12))
        monkeypatch.setattr(triton_mode, "MODE", "compile")

    triton_mode.unavailable.cache_clear()
    yield put
    triton_mode.unavailable.cache_clear()


def test_bfloat16_on_a_card_that_lacks_it_is_refused(gpu, capsys):
    gpu(T4, "Tesla T4")
    message = "dtype=torch.bfloat16 needs a GPU of compute capability 8.0 or higher, and Tesla T4 has 7.5: use float16"
    for spec in ("random:tiny-llama", "tiny"):
        with pytest.raises(ModelLoadError, match=message):
            load_model(spec, device="cuda", dtype=torch.bfloat16)
    assert main(["ladder", "--model", "random:tiny-llama", "--dtype", "bfloat16", "--device", "cuda:0"]) == 2
    assert capsys.readouterr().err == f"error: {message.replace('dtype=', '--dtype ')} or float32\n"


@pytest.mark.parametrize(("dtype", "capability"), [(torch.float16, T4), (torch.bfloat16, A100)])
def test_what_a_card_has_is_not_refused(gpu, dtype, capability):
    gpu(capability, "a card")
    load_module._check_bfloat16(dtype, torch.device("cuda"))


@pytest.mark.needs_triton
def test_a_card_that_is_too_old_for_triton_is_named(gpu):
    gpu(P100, "Tesla P100")
    with pytest.raises(triton_mode.TritonUnavailable, match="compute capability 7.0 or higher, and Tesla P100 has 6.0"):
        triton_mode.require_triton("cuda")
    triton_mode.unavailable.cache_clear()
    gpu(T4, "Tesla T4")
    triton_mode.require_triton("cuda")


def test_the_doctor_tells_of_a_card_that_is_too_old(gpu, monkeypatch: pytest.MonkeyPatch):
    gpu(P100, "Tesla P100")
    monkeypatch.setattr(doctor, "installed_version", lambda name: "3.6.0")
    monkeypatch.setattr(doctor, "what_triton_lacks", lambda: None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("ROSEINFER_TRITON", raising=False)
    check = doctor.probe_triton()
    assert (check.found, check.status) == ("3.6.0, GPU of 6.0", "note") and "7.0 and higher" in check.means


@pytest.mark.parametrize("spec", ["tiny", "random:tiny-llama"])
def test_weights_that_do_not_fit_are_refused_before_any_is_moved(spec, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shapes_module, "available_bytes", lambda device: 1000)
    with pytest.raises(
        ModelLoadError, match=r"the weights take [\d,]+ bytes in torch.float32, and cpu has 1,000 avail"
    ):
        load_model(spec)


@pytest.mark.parametrize(
    "error", [triton_mode.TritonUnavailable("Triton is not installed"), torch.OutOfMemoryError("CUDA out of memory.")]
)
def test_what_a_machine_lacks_is_one_line_of_a_command(error, monkeypatch: pytest.MonkeyPatch, capsys):
    def fail(*given: object, **named: object) -> None:
        raise error

    monkeypatch.setattr("roseinfer.bench.kernel_times.attention_for", fail)
    assert main(["bench", "kernels", "--device", "cpu"]) == 1
    assert capsys.readouterr().err == f"error: {error}\n"
