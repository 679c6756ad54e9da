"""The reproduction of a post: what it is given (Plan), what it says (Report), and the report's three faces.

The packages post000 to post004 each have engines(plan) -> list[EngineConfig] and reproduce(plan) -> Report. A Report
becomes a list of blocks once (blocks), which markdown, page (HTML) and terminal write out.
"""

from .content import Fact, Grid, NotRun, Picture, Report, Section, Time, judge
from .setting import Plan

__all__ = ["Fact", "Grid", "NotRun", "Picture", "Plan", "Report", "Section", "Time", "judge"]
