"""The posts' scheduler benchmark: requests that all arrive at once, served online, offline, or one by one.

- Workload(...): the prompts and how their tokens are chosen
- serve(mode, stage, model, workload, max_batch_size) -> ServerRun: one run, with the engine's own timestamps
- summarize(runs): the posts' figures; figures.FIGURES says what each means
"""

from .figures import Stat, summarize
from .serve import MODES, ServerRun, Workload, serve, words_as_tokens

__all__ = ["MODES", "ServerRun", "Stat", "Workload", "serve", "summarize", "words_as_tokens"]
