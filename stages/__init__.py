"""The ladder: one frozen module a stage, each holding exactly what it changes. In the order of the course."""

from .s01_naive_cat import NaiveCat
from .s02_prealloc_gather import PreallocGather
from .s03_select_append import SelectAppend

LADDER = (NaiveCat, PreallocGather, SelectAppend)

__all__ = ["LADDER", "NaiveCat", "PreallocGather", "SelectAppend"]
