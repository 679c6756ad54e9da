"""walk_launches: the host's operations above the device's work in a decode step, launch by launch and as a graph."""

from __future__ import annotations

from collections.abc import Sequence

from course.display.board import EDGE, Board, Cell, Frame, Panel
from roseinfer.arguments import counted
from roseinfer.display.figure import PALETTE
from roseinfer.models import Model
from roseinfer.stage import Stage

from .step_operations import Operation, decode_operations, graph_operations

BATCH_SIZE = 4
LAUNCH = 6  # cells: the width of a graph's one launch
KINDS = {
    "matrix product": (PALETTE[0], ("linear", "mm", "matmul")),
    "attention": (PALETTE[2], ("attention",)),
    "other computing": (PALETTE[4], ("",)),
}
VIEW = Cell(0, 0, "view: the host makes it, the device has nothing to do", EDGE, strength=0.35)
ONE_LAUNCH = Cell(0, 0, "launch of a graph", PALETTE[3], strength=0.75)
LEGEND = (*(Cell(0, 0, kind, colour, strength=0.75) for kind, (colour, _) in KINDS.items()), ONE_LAUNCH, VIEW)
SAYS = "One box per operation, in their order; no times. A CUDA graph is one launch."


def walk_launches(eager: type[Stage], graphs: type[Stage], model: Model) -> Board:
    """Show one decode step of two stages: each operation that the host starts, and below it what the device computes.

    The step of `graphs` is one launch for all that its graph holds. Recorded on the CPU, where a graph's operations can
    be read.
    Raises ValueError for a model elsewhere, for a stage without graphs, and for a graph that computes something else.
    """
    if model.device.type != "cpu":
        raise ValueError(f"model must be on the CPU, where a graph's operations can be read, got {model.device}")
    operations = decode_operations(eager, model, BATCH_SIZE)
    held, outside = graph_operations(graphs, model, BATCH_SIZE)
    views = {each.name for each in operations if each.is_view}
    computed = [each.name for each in operations if not each.is_view]
    if computed != [name for name in held if name not in views] or any(not each.is_view for each in outside):
        raise ValueError(f"graphs must be a stage whose graph computes what {eager.name} does, got {graphs.name}")
    by_one = f"{eager.name}: the host starts {len(operations)} operations, {len(computed)} of them compute"
    as_graph = f"{graphs.name}: 1 launch of a graph with {len(held)} operations, {len(outside)} views around it"
    text = "\n".join([f"one decode step, {counted(BATCH_SIZE, 'sequence')}", by_one, as_graph])
    panels = [_by_one(operations, by_one), _as_graph(operations, outside, as_graph)]
    return Board([Frame(panels, says=SAYS)], text, legend=LEGEND)


def kind_of(name: str) -> str:
    """Name the kind of an operation that computes."""
    return next(kind for kind, (_, parts) in KINDS.items() if any(part in name for part in parts))


def _by_one(operations: Sequence[Operation], title: str) -> Panel:
    host = [_box(0, place, each) for place, each in enumerate(operations)]
    device = [_box(1, place + 1, each) for place, each in enumerate(operations) if not each.is_view]
    return _panel([*host, *device], title)


def _as_graph(operations: Sequence[Operation], outside: Sequence[Operation], title: str) -> Panel:
    """Draw one launch, with the views that the host makes before it and after it."""
    before = min(next(place for place, each in enumerate(operations) if not each.is_view), len(outside))
    end = before + LAUNCH
    launch = Cell(0, before, "launch", ONE_LAUNCH.colour, outline="none", strength=0.75, width=LAUNCH)
    host = [_box(0, place if place < before else place + LAUNCH, each) for place, each in enumerate(outside)]
    device = [_box(1, end + place, each) for place, each in enumerate(each for each in operations if not each.is_view)]
    return _panel([*host, launch, *device], title)


def _panel(cells: Sequence[Cell], title: str) -> Panel:
    return Panel(cells, title, ("host", "device"), cell=(12, 30))


def _box(row: int, place: float, operation: Operation) -> Cell:
    name, is_view = operation
    colour, strength = (VIEW.colour, VIEW.strength) if is_view else (KINDS[kind_of(name)][0], 0.75)
    return Cell(row, place, colour=colour, strength=strength, outline="none", tooltip=name)
