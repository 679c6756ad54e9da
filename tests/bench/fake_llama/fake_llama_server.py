"""A server with the wire of llama.cpp's, on the standard library: its words are the numbers 0, 1, 2, ...

A prompt that begins with token 0 gets a token too few.
"""

import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("model", "host", "cache-type-k", "cache-type-v"):
    parser.add_argument(f"--{name}")
for name in ("port", "parallel", "ctx-size", "threads", "threads-batch"):
    parser.add_argument(f"--{name}", type=int)
given = parser.parse_args()
facts = json.loads(Path(given.model).read_text())
assert not [name for name in os.environ if name.startswith("OMP_")]
if given.parallel == 3:
    raise SystemExit("three slots are too many")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"{}", "application/json")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["cache_prompt"] is False and body["ignore_eos"] is True and body["temperature"] == 0
        assert all(0 <= token < facts["vocab_size"] for token in body["prompt"])
        assert (len(body["prompt"]) + body["n_predict"]) * given.parallel <= given.ctx_size
        count = body["n_predict"] - (body["prompt"][0] == 0)
        events = [{"content": f" {i}", "stop": False} for i in range(count)]
        events.append({"content": "", "stop": True, "tokens_predicted": count})
        self.answer(b"".join(f"data: {json.dumps(one)}\n\n".encode() for one in events), "text/event-stream")

    def answer(self, body, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *what):
        pass


ThreadingHTTPServer((given.host, given.port), Handler).serve_forever()
