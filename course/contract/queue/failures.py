"""Promises about queues in which something goes wrong: aborted requests, failed steps, logits that are not finite."""

from __future__ import annotations

from typing import Any

import torch

from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from ..injected_errors import ErrorAt, OutOfMemory, where_raised
from ..making import copy_of
from ..small_models import prompts_for
from .driver import Queue

MODEL = "gpt2"
INJECTED = 7  # operations of a whole run at which an error is tried
NAN_AT = 20  # a position
LENGTHS = (9, 14, 5, 2)


def aborted_anywhere(stage_class: type[Stage], device: str) -> None:
    """Abort each of four requests after 0 to 6 steps: waiting, in its prompt, decoding, in flight or preempted.

    Two of them have a common beginning, and one with that beginning comes after the abort.
    """
    for num_blocks, after in ((40, (0, 2, 4)), (6, (1, 3, 6))):
        for number in range(len(LENGTHS)):
            for steps in after:
                queue = _four_requests(stage_class, device, num_blocks)
                queue.steps(steps)
                seq = queue.seqs[number]
                if seq.finish_reason:
                    continue
                queue.abort(seq)
                queue.add([*seq.token_ids[:8], 1], 3)
                queue.steps(1)
                queue.run_out()
        queue.run_out_twice()


def _four_requests(stage_class: type[Stage], device: str, num_blocks: int) -> Queue:
    queue = Queue(stage_class, device, budget=6, num_blocks=num_blocks, block_size=4, max_num_seqs=3)
    first, second, *others = prompts_for(MODEL, LENGTHS)
    for i, prompt in enumerate([first, first[:8] + second[:6], *others]):
        wishes: dict[str, Any] = {"temperature": 1.0, "seed": i} if i == 1 else {}
        queue.add(prompt, 5 + i, **wishes)
    return queue


def failed_queue_steps(stage_class: type[Stage], device: str) -> None:
    """Check that a step with an error or Ctrl-C, anywhere in a run, gives no token, and later steps lose nothing."""
    for num_blocks in (6, 40):
        counter = ErrorAt(OutOfMemory, at=None)
        _run_with(_four_requests(stage_class, device, num_blocks), counter)
        for i in range(INJECTED):
            error = (KeyboardInterrupt, OutOfMemory)[i % 2]
            queue = _four_requests(stage_class, device, num_blocks)
            _run_with(queue, ErrorAt(error, (2 * i + 1) * counter.seen // (2 * INJECTED)))


def _run_with(queue: Queue, injection: ErrorAt) -> None:
    """Run all requests while an error is injected; an asynchronous device may report it one step later."""
    heard = False
    for _ in queue.patience():
        outputs = [list(seq.token_ids) for seq in queue.seqs]
        try:
            with injection:
                queue.step()
        except injection.error:
            heard = True
            changed = outputs != [seq.token_ids for seq in queue.seqs]
            assert not changed, f"a step that fails ({where_raised(injection)}) changes the tokens of its requests"
            queue.require_books()
            break
        except AssertionError:
            raise
        except Exception as other:
            what = f"{where_raised(injection)} in a step: the caller gets a {type(other).__name__} instead"
            raise AssertionError(what) from other
    interrupted = isinstance(injection.raised, KeyboardInterrupt)
    assert heard or not interrupted, f"{where_raised(injection)} in a step is swallowed, the caller never hears of it"
    try:
        queue.run_out()
    except BaseException as error:
        if not isinstance(error, Exception) and error is not injection.raised:
            raise  # a Ctrl-C of the user's own
        raise AssertionError(f"after a step that failed ({where_raised(injection)}): {error}") from error


def one_bad_request(stage_class: type[Stage], device: str) -> None:
    """Check that logits that are not finite give no token: their request is aborted, or the stage ends it ("error").

    All other requests go on, and may use the blocks of that request.
    """
    for num_prompt in (NAN_AT - 2, NAN_AT + 3):
        model = copy_of(MODEL, device)
        with torch.no_grad():
            model.get_parameter("wpe.weight")[NAN_AT] = torch.nan
        queue = Queue(stage_class, device, own=model, num_blocks=9, block_size=4, max_num_seqs=3)
        _, bad, *_ = (queue.add(prompt, 7) for prompt in prompts_for(MODEL, (3, num_prompt, 5, 7, 9, 2)))
        _run_around(queue, bad)
        most = max(num_prompt, NAN_AT + 1)
        assert len(bad) <= most, f"{queue.name(bad)}: {len(bad)} tokens, of which the last come from logits of NaN"
        queue.run_out()


def _run_around(queue: Queue, bad: Sequence) -> None:
    """Run until no request is left. Answer a step that raises ValueError by aborting the bad request, once."""
    for _ in queue.patience():
        try:
            queue.step()
        except ValueError as error:
            assert not bad.finish_reason, f"{queue.name(bad)} has ended, and steps of the others still fail: {error}"
            queue.abort(bad)
    if not bad.finish_reason:
        raise AssertionError(f"{queue.name(bad)} has logits of NaN, and is lost")
