"""What is kept as data to stand beside what this machine measures: the posts' own tables, and results of benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from roseinfer.display.table import Table
from roseinfer.paths import DATA

if TYPE_CHECKING:
    import pandas as pd

R = TypeVar("R")
POSTS = DATA / "posts"
STATED, COMPUTED, REPOSITORY, INFERRED = "stated", "computed", "repository", "inferred"
KINDS = {STATED: "stated", COMPUTED: "computed", REPOSITORY: "seen in its public repository", INFERRED: "inferred"}


@dataclass(frozen=True)
class Source:
    """Where a figure of a post comes from.

    kind: one of KINDS. basis: the place in the post or in its repository, or what the figure was computed or inferred
    from. Raises ValueError for an unknown kind.
    """

    kind: str
    basis: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is not one of {', '.join(KINDS)}")

    @property
    def is_stated(self) -> bool:
        return self.kind == STATED

    def __str__(self) -> str:
        return f"{KINDS[self.kind]}: {self.basis}"


def post_facts(post: str) -> dict[str, Any]:
    """Load what is known of a post's model, machine, command and claims, with None for the unknown.

    The file is data/posts/<post>/about.json. Under "sources" it says where each fact comes from: use source_of.
    """
    return json.loads((_folder(post) / "about.json").read_text(encoding="utf-8"))


def source_of(facts: Mapping[str, Any], name: str) -> Source:
    """Return the source of a fact, of its part ("claims.logprob_buffer"), of a table or of a column."""
    source = facts["sources"][name]
    return Source(source["kind"], source["from"])


class Posted(NamedTuple):
    """A value of a post that a report judges. why: the reason that a value measured here may be another one."""

    value: Any
    source: Source
    why: str


def posted_facts(post: str) -> dict[str, Posted]:
    """Load the values that a report of the post judges, by their names, from data/posts/<post>/judged.json.

    There a value is one of the post's facts, with its source ("of": "claims.faster_order"), or was computed from them
    ("post" and "from").
    """
    facts = post_facts(post)
    entries = json.loads((_folder(post) / "judged.json").read_text(encoding="utf-8"))
    return {what: _posted(facts, entry) for what, entry in entries.items()}


def _posted(facts: Mapping[str, Any], entry: Mapping[str, Any]) -> Posted:
    why = entry.get("why", "")
    if "of" not in entry:
        return Posted(entry["post"], Source(COMPUTED, entry["from"]), why)
    name = entry["of"]
    value: Any = facts
    for part in name.split("."):
        value = value[part]
    return Posted(value, source_of(facts, name if name in facts["sources"] else name.split(".")[0]), why)


def fact_text(facts: Mapping[str, Any], name: str) -> str:
    """Write a fact, and whether the post states it: "RTX 4090", "before 2.9 (inferred)", "not stated"."""
    if facts.get(name) is None:
        return "not stated"
    source = source_of(facts, name)
    return str(facts[name]) if source.is_stated else f"{facts[name]} ({KINDS[source.kind]})"


def post_table(post: str, table: str) -> pd.DataFrame:
    """Load one of the post's tables as it was printed. Raises ValueError for an unknown name, and lists the tables."""
    import pandas as pd

    path = _folder(post) / f"{table}.csv"
    if not path.is_file():
        names = sorted(p.stem for p in path.parent.glob("*.csv"))
        raise ValueError(f"table={table!r} is not one of post {post}'s: {', '.join(names)}")
    return pd.read_csv(path)


def beside_post(post: str, table: str, ours: pd.DataFrame, only: Sequence[str] = ()) -> Table:
    """Join the post's op table and ours by op: counts of both, then the mean host time of both.

    ours: a frame with the columns name, n and avg_us, such as Trace.ops(...).df. only: the ops to show, all if empty.
    What an op such as aten::cat starts inside depends on the number of threads, and is no exact fact.
    """
    theirs = post_table(post, table)
    both = theirs.merge(ours, on="name", how="outer", suffixes=("_post", "_here"), sort=False)
    both = both[both["name"].isin(only)] if only else both
    for column in ("n_post", "n_here"):
        both[column] = both[column].fillna(0).astype(int)
    both = both.sort_values(["n_post", "name"], ascending=[False, True], ignore_index=True)
    facts = post_facts(post)
    return Table(
        both[["name", "n_post", "n_here", "avg_us_post", "avg_us_here"]],
        exact=["name", "n_post", "n_here"],
        live=["avg_us_post", "avg_us_here"],
        title=f"Post {post}: {facts['tables'][table]}",
        note=f"the post's machine: {fact_text(facts, 'hardware')}, torch {fact_text(facts, 'torch')}; "
        "its times are another machine's",
    )


def results(kind: Callable[..., R], folder: Path, pattern: str, command: str) -> Iterator[tuple[Path, R]]:
    """Read the files of `folder` that match. Raises ValueError for a file that is no result of this kind."""
    for path in sorted(folder.glob(pattern)):
        try:
            yield path, kind(**json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            where = f"data/{path.relative_to(folder).as_posix()}"
            raise ValueError(f"{where} is no result as `{command}` writes it: {error}") from error


def _folder(post: str) -> Path:
    folder = POSTS / post
    if not folder.is_dir():
        raise ValueError(f"post={post!r} is not in data/posts: {', '.join(sorted(p.name for p in POSTS.iterdir()))}")
    return folder
