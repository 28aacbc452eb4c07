"""The results drawn, as PNG beside their file; what missed its target is red, with its number."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.suite import plan
from benchmarks.suite.targets import TARGETS, peers_of
from wca_tf.core.files import write_atomically
from wca_tf.evaluation.report.figures import COLOURS

STYLE: Any = {"text.parse_math": False, "axes.spines.top": False, "axes.spines.right": False, "font.size": 9}
MET, MISSED, PLAIN = "#1f9e77", "#c62828", "#9aa0a6"
MARKERS = {"Foolbox": "o", "torchattacks": "s", "ART": "D", "CleverHans": "^"}
BOUNDS = {target.name: target.bound for target in TARGETS}
SHOWN_FROM = 0.1  # of a target's bound: what is met by more than ten times would make the others lines
LINE: Any = {"color": "black", "linewidth": 0.8}
Points = list[tuple[float, float]]


def draw(results: dict[str, Any], out: Path) -> None:
    """Draw every chart for which there is something to draw."""
    with matplotlib.rc_context(STYLE):
        for make in (targets, attacks, eot, training, evaluation):
            if figure := make(results):
                path = out.parent / f"{out.stem}_{make.__name__}.png"
                write_atomically(path, lambda temporary, figure=figure: figure.savefig(temporary, dpi=110))


def panels(columns: int, width: float, height: float, rows: int = 1) -> tuple[Figure, Any]:
    """Return a figure of so many axes, and these by row."""
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def targets(results: dict[str, Any]) -> Figure | None:
    """Draw a bar for each target: how far its worst cell is from the bound; a dot for each cell."""
    measured = [target for target in results["targets"] if target["value"]]
    if not measured:
        return None
    figure, [[axis]] = panels(1, 8.6, 0.6 + 0.36 * len(measured))
    for row, target in enumerate(measured):
        colour = MET if target["met"] else MISSED
        axis.barh(row, _beyond(target, target["value"]) - 1, left=1, height=0.6, color=colour)
        dots = [_beyond(target, cell["value"]) for cell in target["cells"].values() if cell["value"]]
        axis.plot(dots, [row] * len(dots), ".", color="black", markersize=3)
        sign = "≥" if target["at_least"] else "≤"
        label = f"{'met' if target['met'] else 'missed'}: {target['value']:.3g}, bound {sign} {target['bound']:.3g}"
        axis.text(1.02, row, label, transform=axis.get_yaxis_transform(), va="center", color=colour, fontsize=8)
    axis.set_yticks(range(len(measured)), [target["name"] for target in measured])
    axis.invert_yaxis()
    axis.axvline(1, **LINE)
    _logarithmic(axis, "x")
    axis.set_xlim(left=SHOWN_FROM)
    axis.set_xlabel("the worst cell over the bound (dots: every cell); right of the line it is missed")
    return figure


def _beyond(target: dict[str, Any], value: float) -> float:
    """Return the value over its bound, or the bound over it where more is better: above 1 is missed."""
    return target["bound"] / value if target["at_least"] else value / target["bound"]


def attacks(results: dict[str, Any]) -> Figure | None:
    """Draw for each net: deterministic attacks' time over the fastest peer's, share of the peak, and memory."""
    cells = [cell for cell in results["attacks"].values() if cell.get("draws") == 0]
    nets = list(dict.fromkeys(cell["net"] for cell in cells))
    if not nets:
        return None
    figure, rows = panels(len(nets), 6.4, 9.0, rows=3)
    for [times, shares, memory], net in zip(rows.T, nets, strict=True):
        mine = {(cell["attack"], cell["images"]): cell for cell in cells if cell["net"] == net}
        fastest = {place: cell["ratios"].get(cell["fastest_peer"]) for place, cell in mine.items()}
        times.set(title=net, ylabel="time over the fastest peer's")
        _logarithmic(times, "y")
        _grouped(times, fastest, 1.0, bottom=1.0)
        peak_shares = {place: cell["peak_share"] for place, cell in mine.items()}
        bound = BOUNDS["share of the float32 peak, LeNet++"] if net == "lenet_plus_plus" else None
        _grouped(shares, peak_shares, bound, at_least=True)
        shares.set_ylabel("share of the float32 peak")
        memory.set_ylabel("memory over the leanest peer's")
        _logarithmic(memory, "y")
        _grouped(memory, {place: _memory(cell) for place, cell in mine.items()}, None, bottom=1.0)
    return figure


def _memory(cell: dict[str, Any]) -> float | None:
    """Return peak bytes over the least of the peers' with as many images, where both are known."""
    contenders = cell["contenders"]
    ours, images = (contenders[plan.OURS].get(key) for key in ("peak_bytes", "images"))
    peers = [contenders[name] for name in peers_of(cell)]
    known = [peer["peak_bytes"] for peer in peers if peer.get("peak_bytes") and peer["images"] == images]
    return ours / min(known) if ours and known else None


def _logarithmic(axis: Axes, which: str) -> None:
    """Make a scale logarithmic, with numbers written out: matplotlib's are formulas, which STYLE leaves unread."""
    axis.set(**{f"{which}scale": "log"})
    ticks = axis.xaxis if which == "x" else axis.yaxis
    ticks.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    ticks.set_major_formatter(ticker.FuncFormatter(lambda value, _: _tick(value, *ticks.get_view_interval())))
    ticks.set_minor_formatter(ticker.NullFormatter())


def _tick(value: float, low: float, high: float) -> str:
    """Return a tick's number; where many decades are shown, of 1, 2 and 5 the powers of ten alone."""
    return "" if high / low > 100 and f"{value:e}"[0] != "1" else f"{value:g}"


def _grouped(
    axis: Axes, values: dict[Any, float | None], bound: float | None, at_least: bool = False, bottom: float = 0.0
) -> None:
    """Draw bars from `bottom` by (attack, number of images), against a bound where there is one."""
    known = {place: value for place, value in values.items() if value}
    names, sizes = (list(dict.fromkeys(place[part] for place in known)) for part in (0, 1))
    width = 0.8 / max(len(sizes), 1)
    for (name, size), value in known.items():
        met = bound is None or (value >= bound if at_least else value <= bound)
        place = names.index(name) + (sizes.index(size) - (len(sizes) - 1) / 2) * width
        colour = PLAIN if bound is None else MET if met else MISSED
        axis.bar(place, value - bottom, width * 0.92, bottom, color=colour, alpha=1 - 0.25 * sizes.index(size))
        label = f" {value:.3g} " + ("" if met else "missed ")
        side = "top" if value < bottom else "bottom"
        axis.text(place, value, label, rotation=90, fontsize=7, ha="center", va=side, color=colour)
    if bound is not None:
        axis.axhline(bound, linestyle="--", **LINE)
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axis.set_xlabel("images at a time, from left to right: " + ", ".join(map(str, sizes)))
    axis.margins(y=0.3)


def eot(results: dict[str, Any]) -> Figure | None:
    """Draw PGD with EoT by the number of draws: over the deterministic one, and how much faster than peers."""
    cells = [cell for cell in results["attacks"].values() if cell.get("attack") == "pgd" and cell["draws"] > 0]
    if not cells:
        return None
    draws = results["settings"]["target_draws"]
    most, least = (BOUNDS[f"PGD with EoT{name}"] for name in (" over deterministic", ", times faster than each peer"))
    figure, [[own, others]] = panels(2, 6.4, 3.8)
    for number, (net, images) in enumerate(dict.fromkeys((cell["net"], cell["images"]) for cell in cells)):
        ratios = {cell["draws"]: cell["ratios"] for cell in cells if (cell["net"], cell["images"]) == (net, images)}
        colour, label = COLOURS[number % len(COLOURS)], f"{net}, {images} images"
        _line(own, _points(ratios, plan.DETERMINISTIC), colour, label, "o")
        _mark(own, [(x, y) for x, y in _points(ratios, plan.DETERMINISTIC) if x == draws and y > most])
        for peer, marker in MARKERS.items():
            speeds = [(x, 1 / y) for x, y in _points(ratios, peer)]
            _line(others, speeds, colour, "_", marker)  # the colour is told beside the other panel
            _mark(others, [(x, y) for x, y in speeds if x == draws and y < least])
    for peer, marker in MARKERS.items():
        others.plot([], [], marker, color="black", markersize=4, label=peer)
    own.set(xlabel="draws", ylabel="EoT over deterministic PGD, time")
    others.set(xlabel="draws", ylabel="times faster than the peer")
    for axis, which in ((own, "x"), (others, "x"), (others, "y")):
        _logarithmic(axis, which)
    for axis, bound in ((own, most), (others, least)):
        axis.axhline(bound, linestyle="--", **LINE)
        axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def _points(ratios: dict[int, dict[str, float]], other: str) -> Points:
    return [(draws, found[other]) for draws, found in ratios.items() if other in found]


def _line(axis: Axes, points: Points, colour: str, label: str, marker: str) -> None:
    if points:
        axis.plot(*zip(*points, strict=True), marker=marker, markersize=4, color=colour, label=label, linewidth=1)


def _mark(axis: Axes, missed: Points) -> None:
    """Draw a red ring and the number where a point misses the bound."""
    for x, y in missed:
        axis.plot(x, y, "o", markersize=9, markerfacecolor="none", markeredgecolor=MISSED)
        axis.annotate(f"{y:.3g}", (x, y), color=MISSED, fontsize=7, xytext=(5, 5), textcoords="offset points")


def training(results: dict[str, Any]) -> Figure | None:
    """Draw images per second of every contender; red where wca_tf is slower than the step in torch, or ART."""
    timed = {name: cell for name, cell in results["training"].items() if "contenders" in cell}
    if not timed:
        return None
    figure, [axes] = panels(len(timed), 3.2, 3.8)
    for axis, (name, cell) in zip(axes, timed.items(), strict=True):
        speeds = {who: r["images_per_second"] for who, r in cell["contenders"].items() if "images_per_second" in r}
        slower = any(cell["ratios"].get(other, 0) > 1 for other in (plan.AUTHORS, plan.ART))
        for number, (who, speed) in enumerate(speeds.items()):
            missed = who == plan.OURS and slower
            axis.bar(number, speed, color=MISSED if missed else MET if who == plan.OURS else PLAIN)
            label = (f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}") + (" missed" if missed else "")
            axis.text(number, speed, label, ha="center", va="bottom", fontsize=7)
        axis.set_xticks(range(len(speeds)), list(speeds), rotation=35, ha="right", fontsize=7)
        axis.set_title(name.replace(", ", "\n"), fontsize=8)
    axes[0].set_ylabel("images per second")
    return figure


def evaluation(results: dict[str, Any]) -> Figure | None:
    """Draw peak memory along examples, draws and classes, and P(correct)'s time by classes."""
    parts = results["evaluation"]
    curves = {name.removeprefix("memory by "): part for name, part in parts.items() if "points" in part}
    times = {int(key): part for key, part in parts.get("P(correct)", {}).items() if isinstance(part, dict)}
    if not curves and not times:
        return None
    figure, [axes] = panels(len(curves) + bool(times), 3.2, 3.2)
    for axis, (name, curve) in zip(axes, curves.items(), strict=False):
        points = [(point[name], point["peak_bytes"] / 1e9) for point in curve["points"]]
        axis.plot(*zip(*points, strict=True), marker="o", color=COLOURS[0])
        steep = curve["growth"].startswith("steeper")
        axis.set_title(f"memory by {name}: {curve['growth']}", fontsize=8, color=MISSED if steep else "black")
        _logarithmic(axis, "x")
        axis.set(xlabel=name, ylabel="GB at the peak", ylim=(0, 1.15 * max(size for _, size in points)))
    if times:
        values = [1000 * times[key]["seconds_per_image"] for key in sorted(times)]
        axes[-1].plot(sorted(times), values, marker="o", color=COLOURS[1])
        for which in "xy":
            _logarithmic(axes[-1], which)
        axes[-1].set(xlabel="classes", ylabel="ms an image", title="P(correct)")
        axes[-1].title.set_fontsize(8)
    return figure
