"""Mutants of a query: the same SQL with one small mistake, made from its text.

The changed text is not parsed, so a mutant may be no valid query: that one is refused, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# What is written -> what a mistake writes in its place.
INSTEAD = {
    r"(?<![<>])=": ("<>",),
    r">=": (">", "<="),
    r"<(?![=>])": ("<=", ">"),
    r">(?!=)": (">=", "<"),
    r" \+ ": (" - ",),
    r" - ": (" + ",),
    r"\bSUM\(": ("AVG(", "MAX("),
    r"\bMAX\(": ("MIN(", "SUM("),
    r"\bCOUNT\(\*\)": ("SUM(dur)", "COUNT(DISTINCT name)"),
    r"\bCOALESCE\((.*?), 0\)": (r"\1",),
    r"\bLEFT JOIN\b": ("JOIN",),
    r"(?<!LEFT) JOIN\b": (" LEFT JOIN",),
    r" DESC\b": ("",),
    r" PRECEDING\n": (" FOLLOWING\n",),
    r"1 PRECEDING": ("CURRENT ROW", "2 PRECEDING"),
    r"UNBOUNDED PRECEDING AND": ("1 PRECEDING AND",),
    r"\b1e6\b": ("1e3", "1e9"),
    r"'aten::%'": ("'%'", "'aten::c%'", "'aten%'", "'%aten::%'"),
    r"\bLIKE\b": ("NOT LIKE",),
    r" AS (?=n\b|ms\b|gaps\b)": (" AS the_",),
    r"'(\w+)', '(\w+)'": (r"'\1'", r"'\2'"),
    r"\bAND\b": ("OR",),
    r"(ON|WHERE) [^\n]*? AND ": (r"\1 ",),
    r" AND [^\n]*?(?=( AND |\n|$))": ("",),
    r"\bWHERE [^\n]*": ("",),
    r"\bGROUP BY [^\n]*": ("",),
    r"\bORDER BY [^\n]*": ("",),
    r"(ORDER BY) ([^\n,]*), ([^\n]*)": (r"\1 \2", r"\1 \3, \2"),
    r"(ORDER BY [^\n]*)\n": (r"\1 DESC\n", r"\1 LIMIT 1\n"),
    r"(SELECT|BY) name\b": (r"\1 cat", r"\1 id"),
    r"\bts\b": ("dur", "id"),
    r"\bdur\b": ("ts",),
    r"\btid\b": ("pid",),
    r"\bid\b": ("tid",),
}
IS_QUERY = re.compile(r"\s*(SELECT|WITH)\b")


def sql_mutations(query: str) -> Iterator[str]:
    """Yield each mutant of a text that begins as a query does; none for another text."""
    if not IS_QUERY.match(query):
        return
    for pattern, others in INSTEAD.items():
        for match in re.finditer(pattern, query):
            for other in others:
                yield query[: match.start()] + match.expand(other) + query[match.end() :]
