"""The reproduction of a post: its inputs (Setting), its results (PostReport), and the three forms of its report.

The packages post000 to post004 each have engines(setting) -> list[PlannedEngine], reproduce(setting) -> PostReport, and
a report.md with the text. A report is written once, as Markdown (template), and the HTML page is made of that (page). A
terminal gets its verdicts and times (terminal).
"""

from .content import Fact, Grid, Image, NotRun, PostReport, Section, Time, judge
from .setting import Setting
from .template import Values

__all__ = ["Fact", "Grid", "Image", "NotRun", "PostReport", "Section", "Setting", "Time", "Values", "judge"]
