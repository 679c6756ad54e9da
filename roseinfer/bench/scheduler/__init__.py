"""The posts' scheduler benchmark: requests that all arrive at once, served online, offline, or one by one.

- workload(...): the prompts and how their tokens are chosen
- serve(mode, stage, workload, max_batch_size) -> ServerRun: one run, with the time of everything that happened
- summarize(runs): the posts' figures; roseinfer.bench.scheduler.definitions says what each means
"""

from .metrics import Stat, summarize
from .run import ServedRequest, ServedStep, ServerRun
from .serve import MODES, serve
from .workload import Workload, make_workload, words_as_tokens

__all__ = [
    "MODES",
    "ServedRequest",
    "ServedStep",
    "ServerRun",
    "Stat",
    "Workload",
    "make_workload",
    "serve",
    "summarize",
    "words_as_tokens",
]
