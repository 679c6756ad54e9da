"""Train the tiny GPT-2 in roseinfer/data/tiny-gpt2 on the text that Python itself carries.

    python tools/train_tiny.py --minutes 50 --out roseinfer/data/tiny-gpt2

All that the model reads comes with Python: the language reference in `pydoc_data.topics` and the docstrings of the
standard library. Muon for the block matrices reached a loss of 3.8 in the 300 steps in which AdamW alone reached 5.0.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import platform
import re
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

EOT, VOCAB, WIDTH, LAYERS, HEAD = "<|endoftext|>", 2048, 192, 4, 32
LEARNING_RATE, WARMUP = 0.006, 100
HOLD_STEPS, HOLD_TIME = 0.6, 0.48  # the hold's share of the steps, and of the time they take
SHORT, WHOLE = (16, 128), (4, 512)  # windows in a batch, tokens in a window
PROMPTS = [
    "Return a new",
    "The with statement",
    "A class definition",
    "Python is",
    "If the",
    "This function",
    "The list",
    "When an exception is raised",
]
SKIP = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "site-packages",
    "ensurepip",
    "encodings",
    "msilib",
    "distutils",
    "tkinter",
    "curses",
    "pydoc_data",
}
QUOTES = str.maketrans({"’": "'", "‘": "'", "“": "'", "”": "'", "–": "-", "…": "/", "\xa0": " "})
ROLE = re.compile(r":[a-z:]+:`~?([^`<]+?)(?: <[^`]*>)?`")
PLAIN = re.compile(r"[A-Za-z ,.'\"()-]")
CODE = re.compile(r">>>|::=|->|=>|==|\+--|--\+|----|~~~|\.\.\.\.|https?:|[|\\{}<>$^]|\w = \w|@param|\bself\.")
CARD = """---
license: mit
language: en
---
# tiny-gpt2

A GPT-2 small enough to train on two CPU cores, that writes English about Python. It exists so that an
inference engine has real weights to serve. It knows nothing, and what it says of Python is often false.

    {command}

made it, in {minutes} minutes on {threads} CPU threads (Python {python}, torch {torch}). The clock settles the number
of steps, so to repeat the run give `--steps {steps} --seed {seed}` in place of the minutes; elsewhere the last bits
may differ. `training.json` has the record.

| vocabulary | positions | layers | width | heads | head width | parameters | weights |
|---|---|---|---|---|---|---|---|
| {vocab}, byte-level BPE | {positions} | {layers} | {width} | {heads} | {head} | {parameters:,} | fp16, tied |

![Loss curve](loss.png)

The training text is CPython's own, under the PSF License Version 2: the prose of the language reference in
`pydoc_data.topics` and of the standard library's docstrings, {corpus_bytes:,} bytes in {corpus_documents:,} documents,
{corpus_tokens:,} tokens. The model saw it about {passes} times and knows parts of it by heart; here that
is no fault, and no text was held out. The last loss, over 1% of the steps, is {final_loss} nats per token.
The weights are under the MIT licence, like this repository. `<|endoftext|>` ends a paragraph; there is no other
special token.

## Text

Greedy, 60 tokens, the prompt in brackets:

```text
{greedy}
```

At temperature 0.8 among the 40 likeliest tokens, seed 1 for each:

```text
{sampled}
```
"""


def clean_paragraph(block: str) -> str | None:
    """Make one line of prose of a hard-wrapped paragraph; None if it is not prose."""
    lines = block.split("\n")
    # Inside a paragraph prose keeps one left margin; code, tables and lists do not.
    if len(lines) > 2 and len({len(x) - len(x.lstrip()) for x in lines[1:]}) > 1:
        return None
    text = " ".join(" ".join(lines).translate(QUOTES).split())
    text = re.sub(r"^([*+-]|\d+[.)]|\[\d+\]|\([a-z\d]\)) +", "", text)  # list marks
    text = ROLE.sub(r"\1", text)
    text = re.sub(r"\*\*?(?=\S)([^*]+?)\*\*?", r"\1", text)  # emphasis
    text = re.sub(r"``?|''", "", text)
    text = re.sub(r'"([\w.]+(?:\(\))?)"', r"\1", text)  # Sphinx's quoted names
    text = re.sub(r"\s*\((?:See|see) [^()]*\)", "", text).replace("--", "-")
    text = re.sub(r"::$", ":", text)
    if text.endswith(":"):  # its last sentence led into a code block that is dropped
        text = text[: max(text.rfind(". "), 0) + 1]
    if len(text.split()) < 5 or not re.match(r"[A-Z]\w*,? [\w'\"(]", text):
        return None
    if CODE.search(text) or len(PLAIN.findall(text)) < 0.96 * len(text):
        return None
    if re.search(r"\w$", text):
        text += "."
    return text if re.search(r"[.!?)]$", text) else None


def prose_paragraphs(text: str) -> list[str]:
    """List the prose paragraphs of a docstring or of a page of the reference."""
    # A list item is a paragraph of its own even where no blank line is before it.
    text = re.sub(r"\n(?= *[*-] )", "\n\n", text.expandtabs())
    return [p for p in map(clean_paragraph, re.split(r"\n\s*\n", text.strip("\n"))) if p]


def docstrings(path: Path) -> Iterator[str]:
    """Yield the pages of one source file: its header, each class with its methods, its functions."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    groups = [[tree], [n for n in tree.body if isinstance(n, functions)]]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            groups.insert(-1, [n for n in ast.walk(node) if isinstance(n, (ast.ClassDef, *functions))])
    for group in groups:
        yield "\n\n".join(ast.get_docstring(n) or "" for n in group)


def collect() -> list[str]:
    """Collect the corpus: a list of documents, with no paragraph in it twice."""
    library = Path(sysconfig.get_paths()["stdlib"])
    pages = [topics[name] for name in sorted(topics)]
    for path in sorted(library.rglob("*.py")):
        if not SKIP.intersection(path.relative_to(library).parts):
            pages.extend(docstrings(path))
    seen, documents = set(), []
    for page in pages:
        new = [p for p in dict.fromkeys(prose_paragraphs(page)) if p.lower() not in seen]
        seen.update(p.lower() for p in new)
        if new:
            documents.append("\n".join(new))
    return documents


def train_tokenizer(documents: list[str]) -> Tokenizer:
    """Train a byte-level BPE tokenizer, so that any text survives encode and decode unchanged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[EOT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def build(eot: int) -> GPT2LMHeadModel:
    """Make a fresh GPT-2; seed torch first."""
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=WHOLE[1],
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=WIDTH // HEAD,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=eot,
        eos_token_id=eot,
        activation_function="gelu_pytorch_tanh",
    )
    # On short windows plain matrix products beat the fused attention of a CPU.
    return GPT2LMHeadModel._from_config(config, attn_implementation="eager")


def batch(
    paragraphs: list[list[int]], generator: torch.Generator, rows: int, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw windows [rows, length + 1] of paragraphs in a new random order, and their positions [rows, length].

    Every window begins where a paragraph begins, as prompts do. What stands before a paragraph says nothing of it,
    so the model has to know it from its own first words: with the documents in their order it learns to lean on
    what came before, and a prompt has nothing before it. Half of the windows sit at position 0; the others are
    shifted by chance, so that short windows too train every row of the position table.
    """
    windows = []
    for _ in range(rows):
        window = []
        while len(window) <= length:
            window += paragraphs[torch.randint(len(paragraphs), (), generator=generator)]
        windows.append(window[: length + 1])
    shift = torch.randint(WHOLE[1] - length + 1, (rows, 1), generator=generator)
    shift *= torch.randint(2, (rows, 1), generator=generator)
    return torch.tensor(windows), shift + torch.arange(length)


def optimizers(model: GPT2LMHeadModel) -> list[torch.optim.Optimizer]:
    """Make the optimizers: Muon for the matrices inside the blocks, AdamW for everything else."""
    inner = [p for p in model.transformer.h.parameters() if p.ndim == 2]
    chosen = {id(p) for p in inner}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(inner, lr=LEARNING_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def learning_rate(step_number: int, hold: int, total: int | None) -> float:
    """Warm up, hold, then fall by a cosine."""
    if step_number < hold:
        return LEARNING_RATE * min(1.0, (step_number + 1) / WARMUP)
    return LEARNING_RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step_number - hold) / (total - hold))))


def train_step(
    model: GPT2LMHeadModel, opts: list[torch.optim.Optimizer], x: torch.Tensor, position_ids: torch.Tensor, rate: float
) -> float:
    """Make one update and return the loss."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x[:, :-1], position_ids=position_ids, use_cache=False).logits
    loss = F.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten())
    loss.backward()
    for opt in opts:
        opt.param_groups[0]["lr"] = rate
        opt.step()
        opt.zero_grad()
    return loss.item()


def train(model: GPT2LMHeadModel, paragraphs: list[list[int]], args: argparse.Namespace) -> tuple[list[float], float]:
    """Train on short windows while the learning rate holds, and on whole ones while it falls.

    Under `--minutes` the clock decides only when the hold ends; that settles the number
    of steps, and `--steps` with that number repeats the run. Returns losses and minutes.
    """
    generator, opts = torch.Generator().manual_seed(args.seed), optimizers(model)
    total, losses, begun = args.steps, [], time.monotonic()
    while total is None or len(losses) < total:
        step, spent = len(losses), (time.monotonic() - begun) / 60
        if total is None and spent > args.minutes * HOLD_TIME:
            total = max(round(step / HOLD_STEPS), step + 1)
        hold = step + 1 if total is None else round(total * HOLD_STEPS)
        x, position_ids = batch(paragraphs, generator, *(SHORT if step < hold else WHOLE))
        losses.append(train_step(model, opts, x, position_ids, learning_rate(step, hold, total)))
        if step % 50 == 49:
            print(f"step {step + 1} of {total or '?'}: loss {sum(losses[-50:]) / 50:.3f}, {spent:.1f} min", flush=True)
    return losses, (time.monotonic() - begun) / 60


def save(model: GPT2LMHeadModel, tokenizer: Tokenizer, out: Path) -> None:
    """Write the folder in Hugging Face's format: fp16 weights, with the tied embedding stored once."""
    model.config.activation_function = "gelu_new"  # GPT-2's own name for the same function
    model.half().save_pretrained(out)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=EOT,
        eos_token=EOT,
        model_max_length=WHOLE[1],
        clean_up_tokenization_spaces=False,
    ).save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)


def sample(model: GPT2LMHeadModel, tokenizer: Tokenizer, prompt: str, seed: int | None = None, count: int = 60) -> str:
    """Continue a prompt: greedy without a seed, else at temperature 0.8 among the 40 likeliest."""
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    torch.manual_seed(seed or 0)
    how = {"do_sample": False} if seed is None else {"do_sample": True, "temperature": 0.8, "top_k": 40}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, pad_token_id=0, **how)
    return f"[{prompt}]{tokenizer.decode(out[0].tolist())[len(prompt) :]}"


def draw(curve: list[list[float]], path: Path) -> None:
    """Draw the loss curve, as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot([step for step, _ in curve], [loss for _, loss in curve], color="#0072B2", linewidth=2)
    axes.set(xlabel="training step", ylabel="training loss (nats per token)", ylim=(0, None), title="tiny-gpt2")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def write_report(out: Path, record: dict[str, Any]) -> None:
    """Write training.json, the loss curve, and the model card with text from the saved model."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()]
    (out / "training.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    draw(record["loss_curve"], out / "loss.png")
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    model = GPT2LMHeadModel.from_pretrained(out, dtype=torch.float32)
    texts = {
        "greedy": "\n\n".join(sample(model, tokenizer, p) for p in PROMPTS),
        "sampled": "\n\n".join(sample(model, tokenizer, p, seed=1) for p in PROMPTS),
    }
    (out / "README.md").write_text(CARD.format(**record, **texts), encoding="utf-8")


def make_record(
    args: argparse.Namespace,
    corpus: bytes,
    documents: list[str],
    tokens: int,
    parameters: int,
    losses: list[float],
    minutes: float,
) -> dict[str, Any]:
    """Collect all that training.json and the model card say about the run."""
    steps, chunk = len(losses), max(1, len(losses) // 100)
    hold = round(steps * HOLD_STEPS)
    seen = hold * math.prod(SHORT) + (steps - hold) * math.prod(WHOLE)
    budget = f"--steps {args.steps}" if args.steps else f"--minutes {args.minutes:g}"
    curve = [[i + chunk, round(sum(losses[i : i + chunk]) / chunk, 4)] for i in range(0, steps - chunk + 1, chunk)]
    return {
        "command": f"python tools/train_tiny.py {budget} --seed {args.seed} --out roseinfer/data/tiny-gpt2",
        "seed": args.seed,
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "threads": torch.get_num_threads(),
        "minutes": round(minutes, 1),
        "steps": steps,
        "tokens_seen": seen,
        "corpus_documents": len(documents),
        "corpus_bytes": len(corpus),
        "corpus_tokens": tokens,
        "corpus_sha256": hashlib.sha256(corpus).hexdigest(),
        "passes": round(seen / tokens),
        "vocab": VOCAB,
        "positions": WHOLE[1],
        "layers": LAYERS,
        "width": WIDTH,
        "heads": WIDTH // HEAD,
        "head": HEAD,
        "parameters": parameters,
        "final_loss": curve[-1][1],
        "loss_curve": curve,
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, default=50)
    budget.add_argument("--steps", type=int, help="the exact number of steps, to repeat a run")
    parser.add_argument("--out", type=Path, default=Path("roseinfer/data/tiny-gpt2"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    documents = collect()
    tokenizer = train_tokenizer(documents)
    eot = tokenizer.token_to_id(EOT)
    texts = [paragraph for document in documents for paragraph in document.split("\n")]
    encoded = [[*e.ids, eot] for e in tokenizer.encode_batch(texts)]
    num_tokens = sum(map(len, encoded))
    corpus = EOT.join(documents).encode()
    print(f"{len(documents)} documents, {len(texts)} paragraphs, {len(corpus)} bytes, {num_tokens} tokens", flush=True)

    torch.manual_seed(args.seed)
    model = build(eot)
    losses, minutes = train(model, encoded, args)
    save(model, tokenizer, args.out)
    write_report(args.out, make_record(args, corpus, documents, num_tokens, model.num_parameters(), losses, minutes))


if __name__ == "__main__":
    main()
