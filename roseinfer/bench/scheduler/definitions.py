"""What the figures of a served run mean: printed by --help, kept in every recorded run."""

FIGURES = {
    "Elapsed (prefill/add)": "tokenizing (none with --pretok), and the steps that compute prompts. The posts prefill "
    "each request as it is added, and so does a stage; the engine computes prompts together, as many as a step takes",
    "Elapsed (decode/run)": "the other steps, scheduling and sampling included; also printed as `Decode time`. The "
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
    "TTFT": "from the beginning of a request's first step to its first token, and its tokenizing. The queue is left "
    "out, so this is no time to first token under load; as in the posts, where no request queues",
    "TPOT": "from a request's first token to its last, over the tokens after the first. It holds the prefills of the "
    "requests that join later; as in the posts, where with more requests than --max-batch-size it holds the steps of "
    "the others as well: there all take turns, and here a request keeps its place",
    "Latency": "from the beginning of a request's first step to its last token, and its tokenizing",
    "p50/mean": "over the measured runs; of TTFT, TPOT and latency each run gives its median over the requests",
}
