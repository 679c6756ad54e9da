"""roseinfer bench: what it lists, and the line that it says of a bad argument."""

from __future__ import annotations

import pytest

from roseinfer.cli.main import main


def test_without_a_benchmark_it_lists_them(capsys):
    assert main(["bench"]) == 0
    assert "offline" in (shown := capsys.readouterr().out) and "memory" in shown and "host" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("offline --batch-sizes 1,x", "--batch-sizes '1,x': must be integers with commas between them, such as 1,8,64"),
        ("offline --prompt-len ,", "--prompt-len ',': must be integers"),
        ("offline --dtype float32,int8", "--dtype: unknown value 'int8'"),
        ("offline --quantization int8,int2", "--quantization: unknown value 'int2'"),
        ("offline --contenders vllm", "--contenders: unknown stage 'vllm'"),
        ("offline --contenders=", "--contenders '': must name something"),
        ("offline --output no/such/folder.json", "--output no/such/folder.json: must be a file in a folder"),
        ("offline --max-tokens 0", "--max-tokens must be an integer of at least 1, got 0"),
        ("offline --batch-sizes 1000000000", "--batch-sizes 1000000000: an engine for so many sequences"),
        ("memory --dtype int8", "--dtype: unknown value 'int8'"),
        ("memory --batch-size 0", "--batch-size must be an integer"),
        ("ofline", "BENCHMARK: unknown value 'ofline' (nearest: offline)"),
        ("online --budgets 32,x", "--budgets '32,x': must be integers with commas between them"),
        ("online --budgets 0", "budgets must be an integer of at least 1, got 0"),
        ("online --policies lottery", "--policies: unknown value 'lottery'"),
        ("online --contenders vllm", "--contenders: unknown value 'vllm'"),
        ("online --prompt-len 9-8", "--prompt-len '9-8': must be a number of tokens, or the least and the most"),
        ("online --output-len x", "--output-len 'x': must be a number of tokens"),
        ("online --scale 0", "--scale must be a number above 0, got 0.0"),
        ("online --requests 0", "--requests must be an integer from 1 to 1,000,000, got 0"),
        ("online --rate fast", "--rate 'fast': must be numbers with commas between them, such as 0.5,2"),
        ("online --rate 0", "--rate must be a number above 0, got 0.0"),
        ("online --chart curve.bmp", "--chart curve.bmp: unknown suffix '.bmp', allowed: .html, .png, .svg, .pdf"),
        ("online --trace no/such.jsonl", "no/such.jsonl"),
        ("online --prompt-len 4096", "a request of 4112 tokens, prompt and output, allowed: max_model_len="),
        ("online --max-num-seqs 1000000000", "--max-num-seqs 1000000000: an engine for so many sequences"),
        ("chunks --budgets 8", "budgets must be an integer of at least 9, got 8"),
        ("host --batch-sizes 1,x", "--batch-sizes '1,x': must be integers with commas between them"),
        ("host --batch-sizes 0", "--batch-sizes must be an integer of at least 1, got 0"),
        ("host --batch-sizes 1,1", "--batch-sizes must be a list with each value once, got [1, 1]"),
        ("host --max-tokens 3", "--max-tokens must be an integer of at least 4, got 3"),
        ("host --repeats 0", "--repeats must be an integer of at least 1, got 0"),
        ("host --output no/such/folder.json", "--output no/such/folder.json: must be a file in a folder"),
        ("step --batch-sizes 1,x", "--batch-sizes '1,x': must be integers with commas between them"),
        ("step --batch-sizes 1,1", "--batch-sizes must be a list with each value once, got [1, 1]"),
        ("step --batch-sizes 1000000000", "--batch-sizes 1000000000: an engine for so many sequences"),
        ("step --model tiny,tiny", "--model must be a list with each value once, got ['tiny', 'tiny']"),
        ("step --model random:gpt9", "unknown shape 'random:gpt9'"),
        ("step --context 0", "--context must be an integer of at least 1, got 0"),
        ("step --context 512", "context must be below 512, the positions of tiny, got 512"),
        ("step --repeats 0", "--repeats must be an integer of at least 1, got 0"),
        ("step --dtype int8", "--dtype: unknown value 'int8'"),
        ("executors --batch-sizes 1,x", "--batch-sizes '1,x': must be integers with commas between them"),
        ("executors --batch-sizes 0", "--batch-sizes must be an integer of at least 1, got 0"),
        ("executors --batch-sizes 1,1", "--batch-sizes must be a list with each value once, got [1, 1]"),
        ("executors --max-tokens 0", "--max-tokens must be an integer of at least 1, got 0"),
        ("executors --repeats 0", "--repeats must be an integer of at least 1, got 0"),
        ("executors --output no/such/folder.json", "--output no/such/folder.json: must be a file in a folder"),
    ],
)
def test_a_bad_argument_is_one_line_and_exit_2(capsys, arguments: str, message: str):
    assert main(["bench", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and message in err
