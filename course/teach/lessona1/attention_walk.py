"""walk_attention: causal attention of one head, row by row: the scores, their softmax, the weighted sum of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from course.display.board import Board, Cell, Frame, Panel
from roseinfer.display.chart import INK
from roseinfer.display.figure import PALETTE
from roseinfer.models import Model

from .recorded_heads import Heads, record_heads, require_words

SQUARE, ROW, STRIP = 44, 24, 300  # pixels: a score, a row, and all numbers of a vector
POSITIVE, NEGATIVE = PALETTE[0], PALETTE[1]
SCORED, WEIGHT = PALETTE[4], PALETTE[2]
LEGEND = (
    Cell(0, 0, "larger score (in its row)", SCORED, strength=0.8),
    Cell(0, 0, "weight, in percent", WEIGHT, strength=0.7),
    Cell(0, 0, "hidden by the mask", hatched=True),
    Cell(0, 0, "value above 0", POSITIVE, strength=0.8),
    Cell(0, 0, "value below 0", NEGATIVE, strength=0.8),
    Cell(0, 0, "this step", outline=INK),
)
Draw = Callable[[float, list[float]], tuple[str, str, float]]  # a number and its row -> text, colour, strength
SCORE, SOFTMAX, SUM = range(3)  # the steps of a row


def walk_attention(model: Model, token_ids: list[int], words: Sequence[str], heads: Sequence[tuple[int, int]]) -> Board:
    """Draw three steps per token: row i of the scores, of the weights, of the output.

    words: the text of each token. heads: (layer, head) that the reader can choose from, the first one shown first.
    Raises ValueError for no head, for one that the model does not have, for another number of words than of tokens, and
    for tokens that the model cannot take.
    """
    c = model.config
    if not heads:
        raise ValueError("heads must name at least one (layer, head), got none")
    for layer, head in heads:
        if layer not in range(c.num_layers) or head not in range(c.num_heads):
            raise ValueError(f"heads must be below ({c.num_layers}, {c.num_heads}), got ({layer}, {head})")
    require_words(words, token_ids)
    recorded = record_heads(model, token_ids)
    choices = {f"layer {layer}, head {head}": _One(recorded[layer], head, words).frames() for layer, head in heads}
    count = len(token_ids)
    return Board(
        choices if len(choices) > 1 else next(iter(choices.values())),
        f"{'; '.join(choices)}, on {count} tokens: {count * (count + 1) // 2} of {count * count} scores are visible, "
        "row i has tokens 0 to i; a row's weights add up to 100%, and its output is the weighted sum of the values",
        shown=3 * max(0, count - 2) + SUM,
        legend=LEGEND,
        choice_label="shown",
    )


class _One:
    """The frames of one head."""

    def __init__(self, heads: Heads, head: int, words: Sequence[str]) -> None:
        group = len(heads.q) // len(heads.k)
        q, k, self.values = heads.q[head], heads.k[head // group], heads.v[head // group]
        self.scores: Tensor = q @ k.T / q.size(-1) ** 0.5
        self.weights = heads.weights[head]
        self.output = self.weights @ self.values
        self.words, self.count = [word.strip() or "space" for word in words], len(words)

    def frames(self) -> list[Frame]:
        return [self._frame(row, step) for row in range(self.count) for step in (SCORE, SOFTMAX, SUM)]

    def _frame(self, row: int, step: int) -> Frame:
        word = f"token {row}, {self.words[row]!r}"
        after = "Nothing is hidden from the last token." if row == self.count - 1 else "Later tokens are hidden."
        says = {
            SCORE: "Its query times the key of each token up to itself, over √D. "
            f"Only differences between scores count. {after}",
            SOFTMAX: "The softmax of these scores: positive weights that add up to 100%. Hidden tokens get 0.",
            SUM: "Each value is multiplied by its weight, and all are added up: this row of the output.",
        }[step]
        name = {SCORE: "scores", SOFTMAX: "weights", SUM: "weighted sum"}[step]
        return Frame(list(self._panels(row, step)), f"{word}: {name}", says)

    def _panels(self, row: int, step: int) -> Iterator[Panel]:
        places = [str(place) for place in range(self.count)]
        labels = [f"{place} {word}" for place, word in enumerate(self.words)]
        known = row + (step >= SOFTMAX)
        yield Panel(
            list(self._square(self.scores, row + 1, _score, row if step == SCORE else None)),
            "query (row) times key (column) / √D",
            labels,
            places,
            cell=(SQUARE, ROW),
        )
        yield Panel(
            list(self._square(self.weights, known, _weight, row if step == SOFTMAX else None)),
            "weights",
            places,
            places,
            cell=(SQUARE, ROW),
        )
        shares = self.weights[row].tolist() if step == SUM else [1.0] * self.count
        title = "values, each times its weight" if step == SUM else "values"
        yield self._strips(self.values, self.count, title, labels, shares)
        done = row + (step == SUM)
        yield self._strips(self.output, done, "output", places, None, row if step == SUM else None)

    def _square(self, numbers: Tensor, num_rows: int, draw: Draw, now: int | None) -> Iterator[Cell]:
        """Draw a square whose row i has the numbers of tokens 0 to i; rows from num_rows on are not known yet."""
        for row in range(self.count):
            seen = numbers[row, : row + 1].tolist()
            for column in range(self.count):
                if row >= num_rows:
                    yield Cell(row, column)
                elif column > row:
                    yield Cell(row, column, hatched=True)
                else:
                    text, colour, strength = draw(seen[column], seen)
                    yield Cell(row, column, text, colour, outline=INK if row == now else "", strength=strength)

    def _strips(
        self,
        rows: Tensor,
        num_rows: int,
        title: str,
        labels: Sequence[str],
        shares: Sequence[float] | None,
        now: int | None = None,
    ) -> Panel:
        """Draw a row per token, with a cell per number: its sign as colour, its size as strength."""
        width, largest = rows.size(1), float(self.values.abs().max())
        cells = [Cell(self.count - 1, 0, outline="none", width=width)]
        for row in range(num_rows):
            share = 1.0 if shares is None else shares[row]
            for column, number in enumerate((rows[row] * share).tolist()):
                if strength := round(min(abs(number) / largest, 1.0), 2):
                    colour = POSITIVE if number > 0 else NEGATIVE
                    cells.append(Cell(row, column, colour=colour, outline="none", strength=strength))
        cells += [
            Cell(row, 0, width=width, outline=INK if row == now else "", dashed=row >= num_rows)
            for row in range(self.count)
        ]
        return Panel(cells, title, labels, cell=(STRIP / width, ROW))


def _score(number: float, row: list[float]) -> tuple[str, str, float]:
    """Draw a score. Only differences within a row matter to its softmax, so the row's lowest score has no colour."""
    spread = max(row) - min(row) or 1.0
    return f"{number:.1f}", SCORED, round(0.8 * (number - min(row)) / spread, 2)


def _weight(number: float, row: list[float]) -> tuple[str, str, float]:
    return f"{100 * number:.0f}", WEIGHT, round(0.75 * number, 2)
