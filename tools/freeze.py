"""The meaning of "frozen", and the one way to change a published stage.

    python -m tools.freeze s01_naive_cat --reason "why it had to change"

FROZEN.toml keeps for each stage the sha256 of its file, the greedy tokens it gives on the bundled model (fp32, CPU,
mixed lengths) and the aten ops of the second decode step there. `make check` compares the files, `make test` and `make
nightly` compute the rest again. The op counts also notice when the library underneath drifts.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from roseinfer.generate import begin, decode_step, generate
from roseinfer.models import load_model, load_tokenizer
from roseinfer.paths import ROOT, TINY
from roseinfer.profiling import MODEL_OPS, trace_once
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage
from stages import LADDER

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FROZEN = ROOT / "stages" / "FROZEN.toml"
WEIGHTS = TINY / "model.safetensors"
PROMPTS = (
    "Return a new",
    "The with statement is used to wrap the execution of a block with methods defined by a context manager.",
    "Python",
    "If the file does not exist, an error is raised. " * 6,
)
MAX_TOKENS = 16
# Counts that do not depend on the torch version; slices and views do (see roseinfer.profiling.slice_rule).
STABLE_OPS = ("cat", "copy_", "select", "zeros", "zeros_like", "index", "index_put_", "stack", "linear")
PACKED_PRODUCT = "mkldnn::_linear_pointwise"  # counts as a linear layer: not every machine packs weights


def frozen() -> dict[str, Any]:
    """Parse FROZEN.toml; empty before anything was frozen."""
    return tomllib.loads(FROZEN.read_text(encoding="utf-8")) if FROZEN.exists() else {}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def source_file(stage: type[Stage]) -> Path:
    return ROOT / "stages" / f"{stage.name}.py"


def facts(stage_class: type[Stage]) -> dict[str, Any]:
    """Compute the stage's sha256, tokens and op counts as they are now."""
    model, tokenizer = load_model("tiny"), load_tokenizer("tiny")
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    prompts = [tokenizer.encode(text).ids for text in PROMPTS]
    outputs = generate(stage_class(model, num_blocks=16), prompts, params)

    stage = stage_class(model, num_blocks=16)
    seqs = begin(stage, prompts, params)
    decode_step(stage, seqs)  # the first step may do what later ones need not
    trace = trace_once(lambda: decode_step(stage, seqs))
    ops = trace.op_counts(outside=MODEL_OPS)
    ops["aten::linear"] += trace.count(PACKED_PRODUCT)
    return {
        "sha256": sha256(source_file(stage_class)),
        "tokens": [seq.output_ids for seq in outputs],
        "ops": {op: ops[f"aten::{op}"] for op in STABLE_OPS},
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.freeze", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stages", nargs="+", choices=[cls.name for cls in LADDER], metavar="STAGE")
    parser.add_argument("--reason", required=True, help="why it was published or changed; kept in FROZEN.toml")
    args = parser.parse_args(argv)
    record = frozen() | {"model": {"sha256": sha256(WEIGHTS)}}
    for stage in (cls for cls in LADDER if cls.name in args.stages):
        now = facts(stage)
        entry = {"date": datetime.date.today().isoformat(), "sha256": now["sha256"], "reason": args.reason}
        record[stage.name] = now | {"changes": [*record.get(stage.name, {}).get("changes", []), entry]}
        print(f"{stage.name}: frozen at {now['sha256'][:12]}")
    FROZEN.write_text(_to_toml(record), encoding="utf-8")


def _to_toml(record: dict[str, Any]) -> str:
    lines = ['# Written by `python -m tools.freeze STAGE --reason "..."`; tests/stages/test_frozen.py recomputes it.']
    lines += ["", "[model]", f'sha256 = "{record["model"]["sha256"]}"']
    for stage in (cls.name for cls in LADDER if cls.name in record):
        entry = record[stage]
        lines += ["", f"[{stage}]", f'sha256 = "{entry["sha256"]}"', "tokens = ["]
        lines += [f"    {tokens}," for tokens in entry["tokens"]]
        lines += ["]", f"ops = {{ {', '.join(f'{op} = {n}' for op, n in entry['ops'].items())} }}"]
        for change in entry["changes"]:
            lines += ["", f"[[{stage}.changes]]", f"date = {change['date']}", f'sha256 = "{change["sha256"]}"']
            lines += [f"reason = {json.dumps(change['reason'], ensure_ascii=False)}"]  # a string of JSON is one of TOML
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
