"""The marks of walk_online_softmax: scores and weights of the tokens, and below them the bars of l and a."""

from __future__ import annotations

from course.display.computed_picture import LETTERS, OUTLINE, Channels, Spec, legend, mark, quoted, write
from course.display.shapes import EDGE, MONOSPACE, WIDTH
from roseinfer.display.chart import INK
from roseinfer.display.figure import PALETTE

EARLIER, THIS_BLOCK = PALETTE[2], PALETTE[5]
TOP, PLOT = 82, 150  # pixels: where the two plots of tokens begin, and their height
LEFT, RIGHT, PLOT_WIDTH = 30, 470, 340
STATE_TOP, ROW, HIGH = TOP + PLOT + 66, 26, 16
BARS = (60, 400)  # from and to: the bars of l and a
SUMS, WHOLE = RIGHT - 40, WIDTH - 150  # where their numbers begin
SMALL = 10
AT_RIGHT: Channels = {"align": quoted("right"), "fontSize": SMALL}
DIGITS: Channels = {"font": quoted(MONOSPACE)}
LINE: Channels = {"stroke": quoted(EDGE)}
WIDE = "bandwidth('token')"


def bottom_of(width: int) -> float:
    return _legend_top(width) + 16


def marks_of(num_blocks: int, width: int) -> list[Spec]:
    """Make all marks of the picture. width: how many elements the accumulator a has."""
    return [*_words(num_blocks), *_scores(), *_weights(), *_state(), *_numbers(), *_legend(_legend_top(width))]


def _legend_top(width: int) -> float:
    return STATE_TOP + ROW * (1 + width) + 14


def _words(num_blocks: int) -> list[Spec]:
    old, new = fixed("m_old", 2), fixed("m", 2)
    grows = (
        f"'m grows from ' + {old} + ' to ' + {new} + ': all that was summed up shrinks by exp(' + {old} + ' - ' + "
        f"{new} + ') = ' + {fixed('factor')} + '.'"
    )
    stays = f"'m stays ' + {new} + ': the factor is exp(0) = 1, and nothing shrinks.'"
    none = "'Nothing is read yet: m is -inf, and l and a are 0.'"
    first = "'Nothing was summed up before it: m is its own largest score.'"
    done = "'The same as one softmax over all scores, which has to know the largest one from the beginning.'"
    heading = f"ready ? 'the result: a / l' : step ? 'block ' + step + ' of {num_blocks}' : 'before the first block'"
    said = f"ready ? {done} : !step ? {none} : step == 1 ? {first} : m > m_old ? {grows} : {stays}"
    return [
        write(heading, 0, 12, fontSize=13, fontWeight=quoted("bold")),
        write(said, 0, 32, fontSize=13),
    ]


def _scores() -> list[Spec]:
    middle = f"scale('token', datum.i) + {WIDE} / 2"
    level: Channels = {"x": LEFT, "x2": LEFT + PLOT_WIDTH}
    score: Channels = {"y": "scale('score', datum.s)", "y2": "scale('score', 0)"}
    look: Channels = {"fill": _colour(), "opacity": "datum.read ? 0.6 : 0.2"}
    handle: Channels = {"size": 80, "fill": _colour(), "stroke": quoted(INK), "cursor": quoted("ns-resize")}
    undo: Channels = {**LETTERS, **AT_RIGHT, "fontSize": 11, "cursor": quoted("pointer")}
    ends = "domain('score')[0]", "domain('score')[1]"
    return [
        write(quoted("scores s (drag a point)"), LEFT, TOP - 20, fontSize=13),
        mark("text", "", "undo", text=quoted("undo all drags"), x=LEFT + PLOT_WIDTH, y=TOP - 20, **undo),
        mark("rect", "tokens", x="scale('token', datum.i)", width=WIDE, **score, **look),
        mark("rule", **level, y="scale('score', 0)", **LINE),
        mark("rule", **level, y="scale('score', m_old)", stroke=quoted(INK), strokeDash="[4, 3]", drawn_if="m_old < m"),
        mark("rule", **level, y="scale('score', m)", stroke=quoted(INK), strokeWidth=1.5, drawn_if="step"),
        write(f"step ? 'm ' + {fixed('m', 2)} : ''", LEFT + PLOT_WIDTH + 4, "scale('score', m) + 4"),
        mark(
            "symbol", "tokens", "score", x=middle, y=score["y"], tooltip=f"'score ' + {fixed('datum.s', 2)}", **handle
        ),
        *(write(f"format({end}, '+d')", LEFT - 6, f"scale('score', {end}) + 4", **AT_RIGHT) for end in ends),
        *_token_axis("token", LEFT),
    ]


def _weights() -> list[Spec]:
    bars: Channels = {"x": "scale('place', datum.i)", "width": WIDE, "y2": TOP + PLOT}
    was = "datum.earlier && m > m_old"
    return [
        write(quoted("weights exp(s - m)"), RIGHT, TOP - 20, fontSize=13),
        mark("rect", "tokens", **bars, y="scale('weight', datum.weight)", fill=_colour(), opacity=0.6),
        mark("rect", "tokens", **bars, y="scale('weight', datum.was)", **OUTLINE, drawn_if=was),
        mark("rule", x=RIGHT, x2=RIGHT + PLOT_WIDTH, y=TOP + PLOT, **LINE),
        *(write(str(end), RIGHT - 6, f"scale('weight', {end}) + 4", **AT_RIGHT) for end in (0, 1)),
        *_token_axis("place", RIGHT),
    ]


def _token_axis(scale: str, left: float) -> list[Spec]:
    number: Channels = {"align": quoted("center"), "fontSize": SMALL}
    return [
        write("datum.i", f"scale('{scale}', datum.i) + {WIDE} / 2", TOP + PLOT + 14, "tokens", **number),
        write(quoted("token"), left, TOP + PLOT + 30),
    ]


def _colour() -> str:
    return f"datum.earlier ? {quoted(EARLIER)} : datum.read ? {quoted(THIS_BLOCK)} : {quoted(EDGE)}"


def _state() -> list[Spec]:
    """Make the bars of l and a. The part kept and the new part have half a bar each, as their signs may differ."""
    y = f"{STATE_TOP} + {ROW} * datum.row"
    upper: Channels = {"y": y, "height": HIGH / 2}
    lower: Channels = {"y": f"{y} + {HIGH / 2}", "height": HIGH / 2}
    whole: Channels = {"y": y, "height": HIGH}
    zero, kept, now = "scale('state', 0)", "scale('state', datum.kept)", "scale('state', datum.now)"
    before = "scale('state', before[datum.row])"
    title = "ready ? 'l and a, summed up over all blocks' : 'l, the sum of weights, and a, the sum of weight × value'"
    return [
        write(title, LEFT, STATE_TOP - 14, fontSize=13),
        write("datum.name", BARS[0] - 8, f"{y} + 12", "rows", align=quoted("right")),
        mark("rect", "rows", x=zero, x2=kept, **upper, fill=quoted(EARLIER), opacity=0.6),
        mark("rect", "rows", x=kept, x2=now, **lower, fill=quoted(THIS_BLOCK), opacity=0.6),
        mark("rect", "rows", x=zero, x2=before, **whole, **OUTLINE, drawn_if="factor < 1"),
        mark("rule", "rows", x=now, y=y, y2=f"{y} + {HIGH}", stroke=quoted(INK), strokeWidth=2),
        mark("rule", x=zero, y=STATE_TOP - 4, y2=f"{STATE_TOP} + {ROW} * length(before)", **LINE),
    ]


def _numbers() -> list[Spec]:
    now, total = fixed("datum.now"), fixed("after[0]")
    new, old = fixed("datum.now - datum.kept"), fixed("before[datum.row]")
    sums = f"{old} + ' × ' + {fixed('factor')} + ' + ' + {new} + ' = ' + {now}"
    quotient = f"{now} + ' / ' + {total} + ' = ' + {fixed('datum.now / after[0]')}"
    said = f"!step ? {now} : !ready ? {sums} : datum.row ? {quotient} : {now}"
    y = f"{STATE_TOP} + {ROW} * datum.row + 12"
    return [
        write("ready ? 'a / l' : 'before × factor + this block = now'", SUMS, STATE_TOP - 14, fontSize=13),
        write(said, SUMS, y, "rows", **DIGITS),
        write("ready ? 'softmax(s) @ V' : ''", WHOLE, STATE_TOP - 14, fontSize=13),
        write(f"ready && datum.row ? {fixed('whole[datum.row]')} : ''", WHOLE, y, "rows", **DIGITS),
    ]


def fixed(expression: str, decimals: int = 3) -> str:
    return f"format({expression}, '.{decimals}f')"


def _legend(y: float) -> list[Spec]:
    solid: Channels = {"fillOpacity": 0.6, **LINE}
    return legend(
        {
            "this block": {"fill": quoted(THIS_BLOCK), **solid},
            "earlier blocks": {"fill": quoted(EARLIER), **solid},
            "earlier blocks before they shrink": OUTLINE,
            "not read yet": {"fill": quoted(EDGE), "fillOpacity": 0.2, **LINE},
            "the value now": {"fill": quoted(INK), "width": 2},
        },
        y,
    )
