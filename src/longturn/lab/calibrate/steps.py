"""Which steps of the model are timed by themselves: every shape of step that the scheduler makes, small to large."""

from __future__ import annotations

from itertools import product

from longturn.engine.cost import StepSpan

Step = tuple[StepSpan, ...]

# Where the cost of a step bends or jumps with its tokens: kernels compute rows in blocks, so that one token more than
# a block costs as much as the next block (in the torch runner on a CPU: multiples of 32, 64, 96 and 128).
KNOTS = (
    *(1, 2, 4, 8, 16, 32, 33, 48, 64, 65, 96, 97, 128, 129, 192, 193, 256, 257, 288, 289),
    *(384, 385, 512, 513, 640, 768, 1024, 1536, 2048),
)


# Chunks of several prompts in one step: (how many, tokens, where they start).
_SEVERAL = ((2, 128, 0), (4, 64, 0), (2, 512, 1000), (4, 256, 500), (4, 40, 800), (8, 20, 300))


def steps_to_time(context: int, slots: int, *, quick: bool) -> list[Step]:
    """Steps that fit a context and a pool of so many tokens; quick: fewer of them."""
    every: list[Step] = [(StepSpan(n, 0, n > 1),) for n in KNOTS]
    further: list[Step] = [
        *((StepSpan(n, start, True),) for n, start in product((16, 64, 128, 256, 512), (300, 1500, 5000))),
        (StepSpan(1024, 3000, True),),
        *((StepSpan(n, at, True),) * count for count, n, at in _SEVERAL),
        *((StepSpan(1, start, False),) * n for n, start in product((1, 2, 3, 4, 6, 8, 16), (40, 400, 1500, 5000))),
        *(
            (StepSpan(1, 1000, False),) * decoding + (StepSpan(n, start, True),)
            for decoding, (n, start) in product((1, 3, 8), ((30, 900), (120, 900), (250, 0), (510, 900)))
        ),
    ]
    if quick:
        every = [step for step in every if step[0].n <= 512 or step[0].n == max(KNOTS)]
        further = further[::3]
    return [step for step in every + further if _fits(step, context, slots)]


def _fits(step: Step, context: int, slots: int) -> bool:
    ends = [span.start + span.n for span in step]
    return max(ends) <= context and sum(ends) <= slots
