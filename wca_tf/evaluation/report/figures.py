"""The report's figures: SVG in the text colour of the page, and images as PNG. The page holds both, and loads no files.

matplotlib's Figure objects are used without pyplot, so that neither its backend nor a notebook's figures are changed.
"""

import base64
import dataclasses
import hashlib
import io
import re
import warnings
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from wca_tf.gaussian.intervals import Number, mean_with_interval

# A placeholder for the colour of the page's text, light or dark.
INK = "#123456"
COLOURS = ("#2f7fd0", "#d9632a", "#1f9e77", "#b565c4", "#c79a1e", "#3aa7bd", "#d24d6d", "#8a8f3c")
DASHES = ((), (5.0, 2.0), (1.5, 1.5))
SIZE = (4.8, 3.1)  # inches; small, so that text is legible when a phone scales the figure down
LEFT, RIGHT, BOTTOM, TOP = 0.72, 0.1, 0.52, 0.1  # inches around the axes
STYLE: Any = {
    "text.parse_math": False,  # names may have dollar signs
    "svg.fonttype": "none",
    "svg.hashsalt": "wca_tf",
    "text.usetex": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.family": "sans-serif",
    "font.size": 10,
    "lines.linewidth": 1.6,
}
MAX_NAME_LENGTH = 14
MAX_NAMES = 20
LONGEST = 24  # of an attack's name in a figure
# Larger images are shown at this size, so that the page stays a small file.
MAX_PICTURE_SIZE = 96


@dataclasses.dataclass(frozen=True)
class Stroke:
    """The line style of a series, in a figure and in the legend beside it."""

    colour: str
    dashes: tuple[float, ...] = ()
    width: float = 1.6

    def options(self) -> dict[str, Any]:
        """Return keyword arguments for matplotlib's `plot`."""
        return {"color": self.colour, "linestyle": (0, self.dashes), "linewidth": self.width}

    @property
    def swatch(self) -> Markup:
        """A short line for a legend in HTML."""
        colour = "currentColor" if self.colour == INK else self.colour
        dashes = " ".join(f"{2 * length:g}" for length in self.dashes) or "none"
        return Markup(
            '<svg class="swatch" viewBox="0 0 30 10" aria-hidden="true"><line x1="1" y1="5" x2="29" y2="5" '
            'stroke="{}" stroke-width="{}" stroke-dasharray="{}"/></svg>'
        ).format(colour, 2 * self.width, dashes)


WORST_CASE = Stroke(INK, width=2.6)


def strokes_for(names: list[str]) -> dict[str, Stroke]:
    """Return a colour for each series. When the colours are used up, the same colours come dashed, then dotted."""
    unique = dict.fromkeys(names)
    count = len(COLOURS)
    return {name: Stroke(COLOURS[i % count], DASHES[i // count % len(DASHES)]) for i, name in enumerate(unique)}


def accuracy_curves(series: list[tuple[list[float], list[Number], Stroke]], xlabel: str) -> Markup:
    """Draw expected accuracy against epsilon, each series (epsilons, numbers, stroke) with its 95 % band."""
    with Drawing("accuracy") as drawing:
        axes = drawing.axes
        for epsilons, numbers, stroke in series:
            low, high, value = ([100 * n[key] for n in numbers] for key in ("low", "high", "value"))
            axes.fill_between(epsilons, low, high, color=stroke.colour, alpha=min(0.1, 0.5 / len(series)), linewidth=0)
            axes.plot(epsilons, value, marker="o", markersize=3.5, clip_on=False, **stroke.options())
        axes.set(xlabel=xlabel, ylabel="expected accuracy, %", ylim=(0, 100))
        axes.set_xlim(left=0)
    return drawing.svg


def left_by(left: dict[str, Number]) -> Markup:
    """Draw what each attack leaves, as a dot with its 95 % interval; the last, the worst case, in the text's colour."""
    places, height = np.arange(len(left)), 0.75 + 0.26 * len(left)
    with Drawing("left", size=(SIZE[0], height), fitted=True) as drawing:
        axes = drawing.axes
        for place, number in zip(places, left.values(), strict=True):
            low, high, value = (100 * number[key] for key in ("low", "high", "value"))
            colour = INK if place == len(left) - 1 else COLOURS[0]
            axes.hlines(place, low, high, color=colour, linewidth=2)
            axes.plot([value], [place], "o", color=colour, clip_on=False)
        names = [name if len(name) <= LONGEST else name[: LONGEST - 1] + "…" for name in left]
        axes.set_yticks(places, names, fontsize=9)
        axes.set(xlabel="expected accuracy, %", xlim=(0, 100), ylim=(len(left) - 0.5, -0.5))
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
    return drawing.svg


def histogram(series: list[tuple[np.ndarray, Stroke]], xlabel: str) -> Markup:
    """Draw the numbers of images by distance. The series (distances, stroke) are outlines over the same bins."""
    longest = max([float(values.max()) for values, _ in series if len(values)], default=0.0) or 1.0
    bins = np.linspace(0, 1.02 * longest, 33)
    with Drawing("histogram", size=(SIZE[0], 2.5)) as drawing:
        axes = drawing.axes
        for values, stroke in series:
            axes.stairs(np.histogram(values, bins)[0], bins, **stroke.options())
        axes.set(xlabel=xlabel, ylabel="images")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    return drawing.svg


def n_query_curves(series: list[tuple[np.ndarray, np.ndarray, Stroke]]) -> Markup:
    """Draw the mean of P(correct)ⁿ against n, each series (n, values per n and image, stroke) with its 95 % band."""
    with Drawing("queries") as drawing:
        axes = drawing.axes
        for queries, probabilities, stroke in series:
            numbers = [mean_with_interval(values) for values in probabilities]
            low, high, value = ([100 * n[key] for n in numbers] for key in ("low", "high", "value"))
            axes.fill_between(queries, low, high, color=stroke.colour, alpha=0.1, linewidth=0)
            axes.plot(queries, value, clip_on=False, **stroke.options())
        axes.set(xlabel="queries n", ylabel="answered n times without error, %", ylim=(0, 100), xscale="log")
        axes.set_xlim(left=1)
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    return drawing.svg


def spectrum(eigenvalues: np.ndarray, name: str) -> Markup:
    """Draw the eigenvalues of a covariance, largest first; on a logarithmic axis where they differ much."""
    shown = np.maximum(eigenvalues, 1e-12 * eigenvalues.max())  # rounding can make a zero negative
    with Drawing("spectrum", size=(SIZE[0], 2.6)) as drawing:
        axes = drawing.axes
        axes.plot(np.arange(1, len(shown) + 1), shown, "o-", color=COLOURS[0], markersize=3.5, linewidth=1)
        axes.set(xlabel="number, by size", ylabel=f"eigenvalue of {name}")
        axes.set_xlim(0.5, len(shown) + 0.5)
        axes.set_yscale("log" if shown.max() > 30 * shown.min() else "linear")
        axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    return drawing.svg


def alignment_map(squared_cosines: np.ndarray, class_names: list[str]) -> Markup:
    """Draw squared cosines [C, D] between each class's weights and each eigenvector, largest eigenvalue on the left."""
    height = 1.1 + 0.19 * min(len(class_names), MAX_NAMES)
    with Drawing("alignment", size=(SIZE[0], height), fitted=True) as drawing:
        axes = drawing.axes
        shape = squared_cosines.shape
        image = axes.imshow(
            squared_cosines, aspect="auto", cmap="viridis", vmin=0, vmax=max(squared_cosines.max(), 1e-12),
            interpolation="none", extent=(0.5, shape[1] + 0.5, shape[0] - 0.5, -0.5),
        )  # fmt: skip
        _name_classes(axes, class_names)
        axes.grid(visible=False)
        axes.set(xlabel="eigenvector of Σ, largest eigenvalue first")
        drawing.figure.colorbar(image, ax=axes, pad=0.02, aspect=30, label="squared cosine")
    return drawing.svg


def noise_along_weights(quotients: np.ndarray, class_names: list[str], largest: float, mean: float) -> Markup:
    """Draw w_iᵀΣw_i / ‖w_i‖² of each class as bars, with lines at the largest and the mean eigenvalue of Σ."""
    height = 0.9 + 0.19 * min(len(class_names), MAX_NAMES)
    with Drawing("quotients", size=(SIZE[0], height), fitted=True) as drawing:
        axes = drawing.axes
        axes.barh(np.arange(len(quotients)), quotients, color=COLOURS[0], height=0.7)
        axes.axvline(largest, **Stroke(INK).options())
        axes.axvline(mean, **Stroke(INK, DASHES[1]).options())
        _name_classes(axes, class_names)
        axes.grid(visible=False, axis="y")
        axes.set_ylim(len(quotients) - 0.5, -0.5)
        axes.set(xlabel="variance of the noise along a class's weights")
        axes.set_xlim(0, 1.05 * max(largest, quotients.max()))
    return drawing.svg


def picture(pixels: np.ndarray) -> str:
    """Return a data URI of an image [H, W, channels] in [0, 1] as PNG.

    Channels that are no colours are averaged to grey.
    """
    values = np.round(255 * np.clip(pixels, 0, 1)).astype(np.uint8)
    if values.shape[2] != 3:
        values = np.round(values.mean(axis=2)).astype(np.uint8)
    image = Image.fromarray(values)
    image.thumbnail((MAX_PICTURE_SIZE, MAX_PICTURE_SIZE))
    contents = io.BytesIO()
    image.save(contents, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(contents.getvalue()).decode()


def dumbbells(axes: Axes, names: list[str], low: list[float], high: list[float], labels: tuple[str, str]) -> None:
    """Draw a line for each name from `low`, filled, to `high`, hollow, in %; NaN leaves an end out."""
    places = range(len(names))
    axes.hlines(places, low, high, color=COLOURS[1], linewidth=2)
    axes.plot(low, places, "o", color=COLOURS[0], label=labels[0], clip_on=False)
    axes.plot(high, places, "o", color=COLOURS[1], fillstyle="none", label=labels[1], clip_on=False)
    axes.set_yticks(places, names)
    axes.set(xlabel="accuracy, %", xlim=(0, 100), ylim=(len(names) - 0.5, -0.5))


def shorten(name: str) -> str:
    """Return a class's name for a figure: cut to the room that there is.

    U+FFFD replaces characters that are invisible or that reorder others.
    """
    name = "".join(character if character.isprintable() else "\ufffd" for character in name)
    return name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1] + "…"


def _name_classes(axes: Axes, class_names: list[str]) -> None:
    """Name the rows; with many classes, name only every few rows."""
    shown = list(range(0, len(class_names), -(-len(class_names) // MAX_NAMES)))
    names = [shorten(class_names[row]) for row in shown]
    axes.set_yticks(shown, names, fontsize=9)
    axes.tick_params(axis="y", length=0)


class Drawing:
    """One pair of axes to draw on: `with Drawing(name) as drawing: drawing.axes...`; then `drawing.svg` is the drawing.

    The style of this module applies only inside the `with` block, whatever the caller's style is.
    """

    def __init__(self, name: str, size: tuple[float, float] = SIZE, fitted: bool = False) -> None:
        self.name = name
        self.size = size
        self.fitted = fitted  # whether margins fit the labels, which takes twice the time
        self.svg = Markup()
        self._style = matplotlib.rc_context(STYLE)

    def __enter__(self) -> "Drawing":
        self._style.__enter__()
        self.figure = Figure(figsize=self.size, layout="constrained" if self.fitted else None, facecolor="none")
        if not self.fitted:
            width, height = self.size
            self.figure.subplots_adjust(LEFT / width, BOTTOM / height, 1 - RIGHT / width, 1 - TOP / height)
        self.axes = self.figure.add_subplot()
        self.axes.set_axisbelow(True)
        self.axes.grid(alpha=0.18, color=INK, linewidth=0.6)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        try:
            if kind is None:
                self.svg = _to_svg(self.figure, self.name)
        finally:
            self._style.__exit__(kind, *rest)


def _to_svg(figure: Figure, name: str) -> Markup:
    """Return the figure as an inline <svg> element, with ids that no other figure of a page has."""
    contents = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has other fonts
        figure.savefig(contents, format="svg", metadata={"Date": None, "Creator": None})
    text = contents.getvalue()
    text = text[text.index("<svg") :]
    prefix = f"{name}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:6]}-"
    for before in ('id="', "url(#", 'href="#'):
        text = text.replace(before, before + prefix)
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;]*; ", "", text)  # the page's font
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)  # the page decides its size
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return Markup(text.replace(INK, "currentColor"))  # matplotlib has escaped every text in it
