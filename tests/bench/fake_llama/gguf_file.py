"""Writes the facts that fake_llama_server.py reads, in the place of a GGUF."""

import json
import sys
from pathlib import Path

folder, path, precision = sys.argv[1:]
shape = json.loads((Path(folder) / "shape.json").read_text())
Path(path).write_text(json.dumps({"vocab_size": shape["vocab_size"], "precision": precision}))
