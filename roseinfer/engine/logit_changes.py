"""Changes to logits that requests ask for: masks, biases, penalties, functions. For other rows nothing is computed.

They depend on a request's own text. With asynchronous scheduling the last token of that text may not be read yet when a
step is launched. The step before makes it, so the host waits for that one, while the device goes on with this one. For
a step without such rows it never waits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import log

import numpy as np
import torch
from torch import Tensor

from roseinfer.graphs.upload import uploaded
from roseinfer.sampling import NO_TOKEN, finite, finite_temperature
from roseinfer.sampling_params import LogitsProcessor, SamplingParams
from roseinfer.sequence import Sequence

NEVER = float("-inf")
Entry = tuple[int, int, float]  # a row, a token id, a number


@dataclass(slots=True, eq=False)
class ChangedRow:
    """A row of a step's logits [R, V] that a request changes.

    token_ids: the text before the token that is chosen there, drafted tokens too; its last token is missing as long as
    it is not read. length: the length of that text with its last token. error: why a function of the request failed.
    model_token: what the model chose, on the device; NO_TOKEN where its own logits were not finite.
    """

    row: int
    seq: Sequence
    token_ids: list[int]
    length: int
    error: str | None = None
    model_token: Tensor | None = None

    @property
    def params(self) -> SamplingParams:
        return self.seq.params

    @property
    def prompt_ids(self) -> list[int]:
        return self.token_ids[: self.seq.num_prompt_tokens]

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.seq.num_prompt_tokens :]

    @property
    def num_outputs(self) -> int:
        """Number of output tokens before the one that is chosen."""
        return self.length - self.seq.num_prompt_tokens

    @property
    def reads_text(self) -> bool:
        """Whether the change depends on which tokens the text has, and not on their number alone."""
        p = self.params
        return bool(p.logits_processors) or _penalises(p)

    def leaves_only(self, tokens: set[int]) -> bool:
        """Whether a form that the text follows (from structured_outputs) allows only tokens of this set here."""
        forms = [each for each in self.params.logits_processors if hasattr(each, "leaves_only")]
        return any(form.leaves_only(self.output_ids, tokens) for form in forms)

    def why_no_token(self) -> str | None:
        """Return why the request's params leave no token here; None where the model's logits are the cause.

        Call it after the row was computed and no token was chosen. It waits for the device.
        """
        if self.model_token is None or int(self.model_token) == NO_TOKEN:
            return None
        names = ", ".join(field_names(self.params))
        return self.error or f"{names} left no token to choose: each logit is -inf, or one is NaN or infinity"


def changed_rows(rows: list[Sequence], drafts: Mapping[int, list[int]], lengths: np.ndarray) -> list[ChangedRow]:
    """Return the rows of a step that is being launched, [R], whose logits change.

    drafts: by seq_id. lengths [R]: how long the text before each row's token is.
    """
    changed = []
    for row, seq in enumerate(rows):
        if seq.params.changes_logits:
            length = int(lengths[row])
            token_ids = [*seq.token_ids, *drafts.get(seq.seq_id, ())][:length]  # copied: it grows while the step runs
            changed.append(ChangedRow(row, seq, token_ids, length))
    return changed


def read_last_tokens(changed: list[ChangedRow], read: Callable[[], list[int]], sources: np.ndarray) -> None:
    """Complete the texts whose last token the step before makes.

    read: waits for that step and returns its tokens. sources [R]: which of them is the last one of each row's text.
    """
    unread = [each for each in changed if each.length > len(each.token_ids) and each.reads_text]
    if unread:
        tokens = read()
        for each in unread:
            each.token_ids.append(max(0, tokens[sources[each.row]]))  # NO_TOKEN: its sequence is going to end


class LogitChanges:
    """Changes the logits of a step, and chooses its greedy tokens again. eos_token_ids: the model's end tokens."""

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self.eos_token_ids = eos_token_ids

    def __call__(self, logits: Tensor, tokens: Tensor, changed: list[ChangedRow]) -> tuple[Tensor, Tensor]:
        """Change the logits [R, V] and greedy tokens [R] of a step, and return both, the logits in float32.

        Logits that are float32 already change in place. A row without a finite logit gets NO_TOKEN, and so does one
        whose function raises.
        """
        logits = logits.float()
        rows = uploaded([each.row for each in changed], logits.device)
        own, model_tokens = logits[rows], tokens[rows]
        for each, token in zip(changed, model_tokens, strict=True):
            each.model_token = token
        self._change(own, changed)
        largest, best = own.max(dim=-1)
        can_choose = largest.isfinite() & (model_tokens != NO_TOKEN)
        tokens = tokens.index_copy(0, rows, torch.where(can_choose, best, NO_TOKEN))
        return logits.index_copy_(0, rows, own), tokens

    def _change(self, logits: Tensor, changed: list[ChangedRow]) -> None:
        """Change logits [P, V] in place, row i as changed[i] asks."""
        for row, each in zip(logits, changed, strict=True):
            if each.params.allowed_token_ids is not None:
                keep_only(row, each.params.allowed_token_ids)
        add(logits, chain.from_iterable(self._added(i, each) for i, each in enumerate(changed)))
        for row, each in zip(logits, changed, strict=True):
            if each.params.logits_processors:
                call_processors(row, each)
        penalise_repetition(logits, changed)
        add(logits, chain.from_iterable(penalties(i, each) for i, each in enumerate(changed)))
        apply_min_p(logits, [each.params for each in changed])

    def _added(self, row: int, each: ChangedRow) -> Iterator[Entry]:
        """Yield the entries of logit_bias, and those that keep a text with fewer than min_tokens from ending.

        A form that is complete ends the text all the same, as in vLLM, because no other token may follow.
        """
        params = each.params
        for token, bias in (params.logit_bias or {}).items():
            yield row, token, bias
        if each.num_outputs < params.min_tokens:
            ends = {*params.stop_token_ids} if params.ignore_eos else {*params.stop_token_ids, *self.eos_token_ids}
            for token in () if each.leaves_only(ends) else ends:
                yield row, token, NEVER


def keep_only(row: Tensor, token_ids: Iterable[int]) -> None:
    """Set all logits of a row [V] to -inf, except those of token_ids."""
    ids = uploaded([*token_ids], row.device)
    kept = row[ids]
    row.fill_(NEVER)
    row[ids] = kept


def add(logits: Tensor, entries: Iterable[Entry]) -> None:
    """Add each entry's number to its logit, in place."""
    if entries := [entry for entry in entries if entry[1] < logits.size(-1)]:
        rows, ids, values = zip(*entries, strict=True)
        at = uploaded([rows, ids], logits.device)
        numbers = uploaded(values, logits.device, logits.dtype)  # of integers alone, too
        logits.index_put_((at[0], at[1]), numbers, accumulate=True)


def penalise_repetition(logits: Tensor, changed: list[ChangedRow]) -> None:
    """Apply each row's repetition_penalty to its prompt's and output's tokens, in place (Keskar et al., 2019: CTRL)."""
    penalised = [(i, each) for i, each in enumerate(changed) if each.params.repetition_penalty != 1]
    if not penalised:
        return
    ids = [np.unique(each.token_ids) for _, each in penalised]
    counts = [len(own) for own in ids]
    rows = np.repeat([i for i, _ in penalised], counts)
    own_factors = [finite(each.params.repetition_penalty) for _, each in penalised]
    factors = uploaded(np.repeat(own_factors, counts), logits.device, torch.float32)
    at = uploaded(rows, logits.device), uploaded(np.concatenate(ids), logits.device)
    values = logits[at]
    # A factor near 0, or a very large one, must make no infinity of a logit; one that is banned already stays so.
    limits = torch.finfo(logits.dtype)
    changes = torch.where(values > 0, values / factors, values * factors).clamp(limits.min, limits.max)
    logits[at] = torch.where(values.isfinite(), changes, values)


def penalties(row: int, each: ChangedRow) -> Iterator[Entry]:
    """Yield the entries of presence_penalty and frequency_penalty, for the tokens of the output."""
    params = each.params
    if not params.presence_penalty and not params.frequency_penalty:
        return
    for token, count in zip(*np.unique(np.array(each.output_ids, np.int64), return_counts=True), strict=True):
        yield row, int(token), -(params.presence_penalty + params.frequency_penalty * int(count))


def apply_min_p(logits: Tensor, params: list[SamplingParams]) -> None:
    """Set tokens less likely than min_p of the likeliest one, at the row's temperature, to -inf, in place."""
    # p < min_p x largest p, as logits: l / T < largest l / T + log(min_p). A greedy row has no use for it.
    gaps = [log(finite(p.min_p)) * finite_temperature(p) if p.min_p and p.temperature else NEVER for p in params]
    if any(gap != NEVER for gap in gaps):
        limits = logits.amax(dim=-1) + uploaded(gaps, logits.device, torch.float32)
        logits.masked_fill_(logits < limits[:, None], NEVER)


def call_processors(row: Tensor, each: ChangedRow) -> None:
    """Call the functions of a request, one after another, on its row [V], in place."""
    for i, processor in enumerate(each.params.logits_processors):
        try:
            texts = (each.output_ids,) if takes_two(processor) else (each.prompt_ids, each.output_ids)
            made = processor(*texts, row.clone())
            if not isinstance(made, Tensor) or made.shape != row.shape:
                raise ValueError(f"it must return logits of shape {tuple(row.shape)}, got {_described(made)}")
            row.copy_(made)
        except Exception as error:  # a function of a request ends that request, and no other
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            field = getattr(processor, "field", f"logits_processors[{i}]")  # LLM makes some of other fields
            each.error = f"{field} failed: {reason}"
            row.fill_(NEVER)
            return


def takes_two(processor: LogitsProcessor) -> bool:
    """Whether the function takes the output's tokens and the logits alone, without the prompt's tokens before them."""
    try:
        return len(inspect.signature(processor).parameters) < 3
    except ValueError:  # of a function that is not Python's
        return True


def field_names(params: SamplingParams) -> list[str]:
    """Return the fields of a request that change logits, under the request's names: LLM makes functions of some."""
    functions = [getattr(function, "field", "logits_processors") for function in params.logits_processors]
    names = [functions if name == "logits_processors" else [name] for name in params.logit_changes()]
    return [*dict.fromkeys(chain.from_iterable(names))]


def check_tokens(params: SamplingParams, vocab_size: int) -> None:
    """Raise ValueError for a token that the model does not have."""
    for name in ("allowed_token_ids", "logit_bias"):
        for token in getattr(params, name) or ():
            if token >= vocab_size:
                raise ValueError(f"{name} has token id {token}, which is out of range: vocab_size={vocab_size}")


def _penalises(params: SamplingParams) -> bool:
    return bool(params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty)


def _described(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.100}"
