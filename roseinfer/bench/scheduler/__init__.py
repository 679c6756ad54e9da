"""The posts' scheduler benchmark: requests that all arrive at once, served so many at a time.

- Workload(...): the prompts and how their tokens are chosen
- serve(stage, model, workload, max_batch_size) -> ServerRun: one run, with the engine's own timestamps
- summarize(runs): the posts' figures; figures.FIGURES says what each means
"""

from .figures import Stat, summarize
from .serve import MODE, ServerRun, Workload, serve, words_as_tokens

__all__ = ["MODE", "ServerRun", "Stat", "Workload", "serve", "summarize", "words_as_tokens"]
