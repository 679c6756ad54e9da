"""The mode of Triton kernels: compiled on a GPU, or in Triton's interpreter on the CPU. Chosen once, here.

Triton decides when a kernel is decorated, by the variable TRITON_INTERPRET, which this module sets when it is imported.
What Triton wrote in its own language (tl.sum, say) is decorated when Triton is imported, which transformers does too:
where that came first, and was decided otherwise, those modules are run once more.

    ROSEINFER_TRITON=interpret|compile   overrides the choice. "compile" without a GPU is for compiling ahead of time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import reload
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Literal

import torch
from packaging.version import Version
from torch.profiler import record_function
from torch.utils._python_dispatch import _disable_current_modes

from roseinfer.hardware import TRITON_SINCE, device_name, dotted

Mode = Literal["interpret", "compile"]
VARIABLE = "ROSEINFER_TRITON"
MODES: tuple[Mode, ...] = ("interpret", "compile")
INTERPRETER = "triton.interpreter"
# Modules with kernels of Triton's own, then the one that hands their names on.
WRITTEN_IN_TRITON = ("triton.language.standard", "triton.language.random", "triton.language")


class TritonUnavailable(RuntimeError):
    """Raised where no Triton kernel can run in this process; the message says why, in one line."""


def choose_mode(environ: Mapping[str, str], has_gpu: bool) -> Mode:
    """Choose by ROSEINFER_TRITON, else TRITON_INTERPRET=1, else the device. Raises ValueError for an unknown one."""
    asked = environ.get(VARIABLE)
    for mode in MODES:
        if asked == mode:
            return mode
    if asked:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(MODES)}, got {asked!r}")
    return "compile" if has_gpu and environ.get("TRITON_INTERPRET") != "1" else "interpret"


def decide(mode: Mode) -> None:
    """Let kernels that are decorated from now on, and those of triton.language itself, run in that mode."""
    interpret = mode == "interpret"
    decided_otherwise = (os.environ.get("TRITON_INTERPRET") == "1") != interpret
    os.environ["TRITON_INTERPRET"] = "1" if interpret else "0"
    if decided_otherwise and "triton.language" in sys.modules:
        for name in WRITTEN_IN_TRITON:
            reload(sys.modules[name])


MODE: Mode = choose_mode(os.environ, torch.cuda.is_available())
decide(MODE)


@cache
def unavailable(device_type: str | None = None) -> str | None:
    """Return in one line why no Triton kernel can run here, or on tensors of a device ("cpu", "cuda"), else None."""
    if find_spec("triton") is None:
        return "Triton is not installed (it comes for Linux only): every stage without a kernel runs all the same"
    if MODE == "compile" and not torch.cuda.is_available():
        return f"{VARIABLE}=compile and no GPU: kernels can be compiled ahead of time here, but not run"
    if MODE == "compile" and (has := torch.cuda.get_device_capability()) < TRITON_SINCE:
        needs = f"Triton needs a GPU of compute capability {dotted(TRITON_SINCE)} or higher"
        return f"{needs}, and {device_name('cuda')} has {dotted(has)}: device='cpu' runs without it"
    if MODE == "compile" and device_type not in (None, "cuda"):
        return (
            f"kernels are compiled for the GPU here, the tensors are on {device_type}: {VARIABLE}=interpret runs them"
        )
    return None


def require_triton(device_type: str | None = None) -> None:
    """Raise TritonUnavailable unless a kernel can run (on tensors of that device)."""
    if reason := unavailable(device_type):
        raise TritonUnavailable(reason)


@cache
def pdl_options() -> dict[str, bool]:
    """Return a launch's options for programmatic dependent launch: PDL goes to the kernel, launch_pdl to Triton.

    With it a program starts while the launch before is still running. It must call gdc_wait before it reads what that
    launch wrote, before it writes anything and before it returns. GPUs have it from compute capability 9.0 on.
    """
    if MODE == "compile" and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


def language() -> Any:
    """Return triton.language, or None without Triton, so that a module that defines kernels can be imported anyway."""
    if find_spec("triton") is None:
        return None
    import triton.language

    return triton.language


class InterpretedKernel:
    """A kernel in the interpreter: kernel[grid](...) launches it, and another kernel calls it with kernel(...).

    What Triton's interpreter copies to do its work is no part of a stage: in a trace it lies under one span,
    INTERPRETER, and counting bytes does not see it.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            with record_function(INTERPRETER), _disable_current_modes():
                self.kernel[grid](*args, **kwargs)

        return launch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernel(*args, **kwargs)


def jit(kernel: Callable[..., Any], do_not_specialize: Sequence[str] = ()) -> Any:
    """Decorate with triton.jit. Without Triton, return the kernel as it is: require_triton stands before every launch.

    do_not_specialize: integer arguments for whose values 1, and multiples of 16, Triton is not to compile once more.
    """
    if find_spec("triton") is None:
        return kernel
    import triton

    compiled = triton.jit(kernel, do_not_specialize=do_not_specialize)
    if MODE == "compile":
        return compiled
    _let_tensors_bound_loops()
    return InterpretedKernel(compiled)


@cache
def _let_tensors_bound_loops() -> None:
    """Let the interpreter make a Python integer of a loop's bound, as Triton does from 3.7 on.

    Older ones leave that to NumPy, which refuses it from 2.4 on: a bound is an array of one element.
    """
    if Version(version("triton")) >= Version("3.7"):
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
