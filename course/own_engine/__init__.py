"""A learner's own engine: five exercises whose answers are kept as files, and how these become one stage."""

from .kept import engine_in, folder, keep, load, my_engine, own_pieces, source_of
from .pieces import PIECES, Piece, assembled, piece_of, without_the_course

__all__ = [
    "PIECES",
    "Piece",
    "assembled",
    "engine_in",
    "folder",
    "keep",
    "load",
    "my_engine",
    "own_pieces",
    "piece_of",
    "source_of",
    "without_the_course",
]
