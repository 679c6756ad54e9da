"""The reproduction of a post: its inputs (Setting), its results (PostReport), and the three forms of its report.

The packages post000 to post004 each have reproduce(setting) -> PostReport, and a report.md with the text. The whole
report is Markdown (template). A terminal gets its verdicts and times (terminal), and JSON has all figures
(PostReport.to_json).
"""

from .content import Fact, Grid, NotRun, PostReport, Section, Time, judge
from .setting import Setting
from .template import Values

__all__ = ["Fact", "Grid", "NotRun", "PostReport", "Section", "Setting", "Time", "Values", "judge"]
