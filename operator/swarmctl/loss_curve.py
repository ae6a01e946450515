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
    return Text(plotext.uncolorize(str(figure.build())).rstrip("\n"), "cyan", no_wrap=True)
