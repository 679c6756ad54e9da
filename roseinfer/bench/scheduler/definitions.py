"""What the figures of a served run mean: printed by --help, kept in every recorded run."""

METRICS = {
    "Elapsed (prefill/add)": "all requests added one after another, each prefilled at once and its first token drawn",
    "Elapsed (decode/run)": "the decode steps, scheduling and sampling included; also printed as `Decode time`. The "
    "posts' figure also holds turning all tokens into text at the end; here nothing is turned into text",
    "Elapsed (total)": "both together; also printed as `Total time`",
    "Prompt tokens": "tokens of all prompts",
    "Completion tokens": "tokens that were generated, counted as they were made. The posts turn them into text and "
    "count the tokens of that, which may be more or fewer",
    "Total tokens": "prompt and completion tokens",
    "Throughput (completion)": "completion tokens over the total time",
    "Throughput (total)": "prompt and completion tokens over the total time",
    "Throughput(completion,decode)": "completion tokens over the decode time, although the prefill made the first "
    "token of each request; as in the posts",
    "Throughput(completion,total)": "completion tokens over the total time",
    "TTFT": "from a request's add to its first token: its own tokenizing and prefill. Requests are added one by one, "
    "so nobody queues, and this is no time to first token under load; as in the posts",
    "TPOT": "from a request's first token to its last, over the tokens after the first. It holds the prefills of the "
    "requests added later and, with more requests than --max-batch-size, the steps of the others; as in the posts",
    "Latency": "from a request's add to its last token",
    "p50/mean": "over the measured runs; of TTFT, TPOT and latency each run gives its median over the requests",
}
