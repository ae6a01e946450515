"""The loss curve, drawn with characters. Imports nothing of ours."""

from collections.abc import Sequence

import plotext
from rich.text import Text


def draw(versions: Sequence[int], losses: Sequence[float], width: int, height: int) -> Text:
    """Draw losses over versions.

    Args:
        versions: Where the losses were taken, ascending; at least two.
        losses: Nats per token.
        width: Columns of the whole picture.
        height: Rows of the whole picture.
    """
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, height)
    figure.draw(figure.signal(list(versions), list(losses), marker="braille").lines())
    figure.label("version")
    figure.ruler("x").ticks(_ticks(versions[0], versions[-1]))
    return Text(plotext.uncolorize(str(figure.build())).rstrip("\n"), "cyan", no_wrap=True)


def _ticks(first: int, last: int) -> list[int]:
    """At most eight round numbers between two versions."""
    step = next(s for power in range(12) for s in (10**power, 2 * 10**power, 5 * 10**power) if last - first <= 8 * s)
    return list(range(-(-first // step) * step, last + 1, step))
