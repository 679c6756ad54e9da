"""Promises about reach: sizes past every limit that an integer type, a stride or a hidden assumption may have.

Each one makes one thing large and keeps the others small, so that what breaks is what its name says: long sequences lie
in few blocks, high block ids belong to short sequences, and so on. They come in that order in the list of promises.
"""

from __future__ import annotations

from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..broken_promises import refused
from ..small_models import LONG, LONGEST, ODD_LENGTH, SHAPES
from ..teacher_forced import TeacherForced


def odd_shapes(stage_class: type[Stage], device: str) -> None:
    """Decode two sequences over two block edges in each unusual model shape."""
    for shape in SHAPES:
        run = TeacherForced(stage_class, device, shape, num_blocks=6, block_size=4)
        _run_to_the_end(run, (6, 3), 3, f"model {shape}: ")


def any_block_size(stage_class: type[Stage], device: str) -> None:
    """Check block sizes: 1, where each token is an edge; 100 and more, where one block is enough; no powers of two."""
    for block_size in (1, 2, 3, 7, 48, 100, 1000):
        if run := _accepted(stage_class, device, "two layers", block_size, num_tokens=45):
            _run_to_the_end(run, (1, 6, 20), 4, f"block_size={block_size}: ")


def last_position(stage_class: type[Stage], device: str) -> None:
    """Reach the last position of a model of 45, in the middle of a block, in a pool that is just large enough."""
    for block_size in (4, 16, 64):
        where = f"max_model_len={ODD_LENGTH}, block_size={block_size}: "
        blocks = -(-ODD_LENGTH // block_size)
        run = TeacherForced(
            stage_class, device, "groups of 3", num_blocks=2 * blocks, block_size=block_size, max_num_seqs=2
        )
        seqs = run.begin((ODD_LENGTH - 3, ODD_LENGTH - 3), 3, where)
        for _ in range(3):
            run.decode(seqs, where)
        for seq in seqs:
            seq.append(1)
        before = run.books(seqs)
        with refused(f"{where}a token past the last position", f"max_model_len={ODD_LENGTH}"):
            run.stage.decode(seqs)
        assert run.books(seqs) == before, f"{where}a step past the last position was refused, and changed the books"
        run.end(seqs)


def just_fits(stage_class: type[Stage], device: str) -> None:
    """Check that the largest request that fits is taken, in positions and in blocks, and a larger one is refused."""
    for num_blocks, most, too_long, named in (
        (12, ODD_LENGTH, ODD_LENGTH + 2, f"max_model_len={ODD_LENGTH}"),
        (3, 13, 14, "num_blocks=3"),
    ):
        run = TeacherForced(stage_class, device, "groups of 3", num_blocks=num_blocks, block_size=4, max_num_seqs=1)
        for num_prompt in (1, most - 1):
            what = f"a prompt of {num_prompt} + max_tokens={most - num_prompt}"
            try:
                run.stage.check_fits(_request(num_prompt, most))
            except ValueError as error:
                raise AssertionError(f"{what} just fits {named}, and is refused: {error}") from error
            with refused(f"a request of {too_long} tokens", named):
                run.stage.check_fits(_request(num_prompt, too_long))
        [seq] = run.begin((most - 2,), 2)
        run.decode([seq], f"the largest request that {named} can take: ")
        run.end([seq])


def _request(num_prompt: int, longest: int) -> Sequence:
    return Sequence([1] * num_prompt, SamplingParams(max_tokens=longest - num_prompt))


def long_sequences(stage_class: type[Stage], device: str) -> None:
    """Decode over the lengths at which 7, 8, ... 12 bits are full: beside a sequence of one token, then alone."""
    lengths = (1, 127, 255, 511, 1023, 2047, 4095)
    run = _accepted(stage_class, device, "long", 1024, num_tokens=sum(lengths) + 7 * 1024)
    run = run or TeacherForced(stage_class, device, "long", num_blocks=140)
    seqs = run.begin(lengths, LONG - 4095, "prompts of up to 4,095 tokens: ")
    for _ in range(3):
        run.decode(seqs, "lengths from 1 to 4,097: ")
    run.decode(seqs[-1:], "one sequence of 4,098 tokens: ")
    run.end(seqs)


def very_long_sequences(stage_class: type[Stage], device: str) -> None:
    """Decode past 32,767 tokens, where a signed 16-bit integer is full."""
    run = _accepted(stage_class, device, "longest", 4096, num_tokens=LONGEST) or TeacherForced(
        stage_class, device, "longest", num_blocks=-(-LONGEST // 64)
    )
    _run_to_the_end(run, (2**15 - 1,), 3, "32,767 tokens and more: ")


def high_block_ids(stage_class: type[Stage], device: str) -> None:
    """Decode short sequences in blocks with ids over 127 and 255, where 8 bits are full."""
    for first in (125, 253):
        _with_ids_from(first, stage_class, device)


def very_high_block_ids(stage_class: type[Stage], device: str) -> None:
    """Decode in blocks with ids over 32,767 and 65,535, where 16 bits are full; a GPU's pool has as many."""
    for first in (2**15 - 3, 2**16 - 3):
        _with_ids_from(first, stage_class, device)


def _with_ids_from(first: int, stage_class: type[Stage], device: str) -> None:
    """Hold back the pool's first blocks, so that two sequences get the blocks from `first` on and fill the pool."""
    most = LONGEST // 4  # blocks that one sequence may hold
    # In the books alone: blocks that no decoding sequence holds.
    ballast = {-1 - i: 4 * min(most, first - i * most) for i in range(-(-first // most))}
    run = TeacherForced(
        stage_class, device, "longest", num_blocks=first + 6, block_size=4, max_num_seqs=3 + len(ballast)
    )
    run.stage.tables.reserve(ballast)
    where = f"in blocks {first} to {first + 5}, of as many as there are: "
    seqs = run.begin((6, 8), 4, where)
    for _ in range(4):
        run.decode(seqs, where)
    for seq_id in ballast:
        run.stage.tables.free(seq_id)
    run.end(seqs)


def many_blocks(stage_class: type[Stage], device: str) -> None:
    """Decode with a block table of more than 255 columns, where 8 bits are full."""
    run = TeacherForced(stage_class, device, "long", num_blocks=260, block_size=4)
    _run_to_the_end(run, (4 * 256 - 1, 1), 3, "256 blocks of 4 tokens, and one more: ")


def large_batches(stage_class: type[Stage], device: str) -> None:
    """Decode more than 64 sequences, the most that a stage holds by default."""
    _in_batches_of((9, 70), stage_class, device)


def very_large_batches(stage_class: type[Stage], device: str) -> None:
    """Decode more than 255 sequences, where 8 bits are full."""
    _in_batches_of((257,), stage_class, device)


def _in_batches_of(batch_sizes: tuple[int, ...], stage_class: type[Stage], device: str) -> None:
    """Hold as many sequences as allowed; each step decodes the first few, and the last step all but the first."""
    most = max(batch_sizes)
    run = TeacherForced(stage_class, device, "long", num_blocks=3 * most, block_size=4, max_num_seqs=most)
    seqs = run.begin([1 + i % 7 for i in range(most)], len(batch_sizes) + 1, f"{most} sequences held: ")
    for batch_size in batch_sizes:
        run.decode(seqs[:batch_size])
    run.decode(seqs[1:])
    with refused(f"one sequence more than max_num_seqs={most}", f"max_num_seqs={most}"):
        run.stage.prefill(Sequence([1]))
    run.end(seqs)


def _run_to_the_end(run: TeacherForced, lengths: tuple[int, ...], num_steps: int, where: str) -> None:
    seqs = run.begin(lengths, num_steps, where)
    for _ in range(num_steps):
        run.decode(seqs, where)
    run.end(seqs)


def _accepted(
    stage_class: type[Stage], device: str, model: str, block_size: int, num_tokens: int
) -> TeacherForced | None:
    """Make a stage with that block size; return None if the stage refuses the size by name, as a kernel may."""
    num_blocks = -(-num_tokens // block_size) + 3
    try:
        return TeacherForced(stage_class, device, model, num_blocks=num_blocks, block_size=block_size)
    except ValueError as refusal:
        if "block_size" not in str(refusal):
            raise
        return None
