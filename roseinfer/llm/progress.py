"""A bar for requests that run: in a terminal or a notebook, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

REDRAW_SECONDS = 0.1
LAYOUT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{remaining} left{postfix}]"


@contextmanager
def progress_bar(total: int, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a function show(requests done, tokens made), which redraws the bar; the bar disappears at the end."""
    from tqdm.asyncio import tqdm_asyncio
    from tqdm.auto import tqdm

    # In a notebook tqdm.auto has tqdm_notebook. To name that class here would import IPython and ipywidgets everywhere.
    is_notebook = tqdm is not tqdm_asyncio
    if not (shown and total and (is_notebook or (sys.stderr and sys.stderr.isatty()))):
        yield lambda num_done, num_tokens: None
        return
    begun = perf_counter()
    # miniters=0: drawn by the clock, as a step that finishes no request makes tokens too.
    with tqdm(
        total=total, desc="requests", leave=False, mininterval=REDRAW_SECONDS, miniters=0, bar_format=LAYOUT
    ) as bar:

        def show(num_done: int, num_tokens: int) -> None:
            bar.set_postfix_str(f"{num_tokens / (perf_counter() - begun):,.0f} tok/s", refresh=False)
            bar.update(num_done - bar.n)

        yield show
