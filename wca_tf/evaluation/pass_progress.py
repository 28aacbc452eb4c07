"""The progress of attacks in passes, read by a thread from the counters of the graphs, which run for minutes."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

import tensorflow as tf

from wca_tf.attacks import Attack
from wca_tf.attacks.auto_pgd import AutoPGD
from wca_tf.attacks.cascade import RANKING_DRAWS, Stage, WorstCase
from wca_tf.attacks.gradients import num_scoring_draws
from wca_tf.attacks.pgd import MomentumPGD, ProjectedGradient
from wca_tf.attacks.transfer import Transfer
from wca_tf.distribution.progress import progress_bar
from wca_tf.distribution.replicas import in_multi_worker
from wca_tf.nets import passes
from wca_tf.nets.judge import ESTIMATING_DRAWS
from wca_tf.nets.mixture_target import members_of
from wca_tf.nets.targets import AnyTarget

INTERVAL = 1.0  # seconds
BUILDING = "building the graph"  # before the first pass: half a minute for a cascade on a net with noise in its layers
MEMBERS: dict[type[Attack], str] = {ProjectedGradient: "pgd", MomentumPGD: "pgd", AutoPGD: "apgd"}


class Turn(NamedTuple):
    """A run of one attack of a cascade, with the estimated passes of an image."""

    name: str
    passes: float


@dataclasses.dataclass
class Work:
    """The batches of a trial that are left to do.

    Attributes:
        title: the attack and its radius.
        turns: the runs of a cascade's attacks in order; one run without a name for another attack.
        rest: the passes of an image besides those of the attack: of the check of gradients, and of the judge.
        rows: the images of a batch, padding included.
        batches: the number of batches.
        ratio: the passes so far over their estimate; an image that is lost costs less.
    """

    title: str
    turns: list[Turn]
    rest: float
    rows: int
    batches: int
    ratio: float = 1.0

    def estimate(self, turn: int = 0, images: int | None = None) -> float:
        """Return the passes of a batch from a turn on, with so many images in play; all of them when absent."""
        left = sum(each.passes for each in self.turns[turn:])
        return self.rows * self.rest + (self.rows if images is None else images) * left


def work_of(title: str, attack: Attack | None, nets: tuple[AnyTarget, AnyTarget], images: int, batch_size: int) -> Work:
    """Return the work of an attack on so many images; `nets` are the net that it attacks and the net that judges."""
    attacked, judging = nets
    rest, turns = float(_draws(judging, ESTIMATING_DRAWS)), []
    if attack:
        rest *= 1 + attack.targeted  # the wanted class is judged too
        rest += 2 * _draws(attacked, attack.eot_samples) * bool(attack.gradient_objective)
        turns = _turns(attack, attacked)
    return Work(title, turns, rest, batch_size, -(-images // batch_size))


def _turns(attack: Attack, target: AnyTarget) -> list[Turn]:
    if not isinstance(attack, WorstCase):
        return [Turn("", _passes(attack, target))]
    deciding = _draws(target, num_scoring_draws(target, attack.eot_samples))
    turns = []
    for each in attack.stages(target):
        ranking = _draws(target, RANKING_DRAWS) if each.target_classes else 0
        turn = Turn(member_name(each), _passes(each.attack, target) + deciding + ranking)
        turns += [turn] * (each.restarts * max(each.target_classes, 1))
    return turns


def _passes(attack: Attack, target: AnyTarget) -> float:
    """Return an estimate of the passes of an image, forward and backward."""
    if isinstance(attack, Transfer):
        draws = _draws(attack.source, attack.eot_samples) if attack.source else 1
    else:
        draws = _draws(target, attack.eot_samples)
    ways: float = 2 if attack.gradient_objective or isinstance(attack, Transfer) else 1
    if isinstance(attack, AutoPGD) and not target.cheap_draws:
        ways = 3  # it compares its iterates by other draws
    if isinstance(attack, MomentumPGD) and attack.objective == "bounded":
        ways = 1.5  # of two forward passes, the one for the units does not go back
    return attack.passes * ways * draws


def _draws(target: AnyTarget, draws: int) -> int:
    """Return the passes that so many draws cost."""
    return sum(1 if member.cheap_draws else draws for _, member in members_of(target))


def member_name(member: Stage) -> str:
    """Return a cascade's attack as the bar names it."""
    attack = member.attack
    name = MEMBERS.get(type(attack)) or attack.spelled.split(":")[0]
    objective = getattr(attack, "source_objective", None) or attack.gradient_objective
    aim = " towards each other class" if member.target_classes else ""
    return name + (f" on {objective}" if objective else "") + aim


class PassProgress:
    """The bar of all attacks that are left to do, for use as a context.

    Its total is an estimate. It shrinks when a cascade's images are lost, and at the end of each batch.

    Args:
        work: the trials in order.
        attacked: the net under attack.
    """

    def __init__(self, work: list[Work], attacked: AnyTarget) -> None:
        self._later = list(work)
        self._bar = progress_bar(round(sum(each.batches * each.estimate() for each in work)), "passes")
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._workers = _workers() if attacked.per_image_noise else 1
        self._begun = self._read()
        self._in_batch = False

    def __enter__(self) -> "PassProgress":
        if not self._bar.disable:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.ident:
            self._thread.join()
        if kind is None:
            self._bar.total = self._bar.n
        self._bar.close()

    @contextlib.contextmanager
    def batch(self, images: int) -> Iterator[None]:
        """Show the next batch of the work, of so many images without padding, while it is attacked."""
        with self._lock:
            self._work, self._images = self._later[0], images
            passes.assign(passes.TURN, 0)
            passes.assign(passes.IN_PLAY, 0)
            self._before, self._expected, self._seen = self._read(), self._work.estimate() * self._work.ratio, (0, 0)
            self._in_batch = True
            # Shown at once: a batch may take minutes. A worker that shows nothing has a bar without a description.
            if not self._bar.disable and self._bar.desc != f"{self._work.title}: ":
                self._bar.set_description(self._work.title)
        yield
        with self._lock:
            self._in_batch, self._work.batches = False, self._work.batches - 1
            self._expected = self._read() - self._before
            self._work.ratio = self._expected / self._work.estimate() or 1.0
            self._end_building()
            self._show()
            if not self._work.batches:
                self._later.pop(0)

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL):
            with self._lock:
                if self._in_batch:
                    self._look()
                    self._show()

    def _look(self) -> None:
        """Read which attack of a cascade runs, and with how many images, and estimate the batch again."""
        if self._read() == self._before:
            return self._describe(BUILDING)
        self._end_building()
        seen = passes.read(passes.TURN), self._workers * passes.read(passes.IN_PLAY)
        if seen == self._seen or not seen[1] or seen[0] >= len(self._work.turns):
            return
        self._seen, (turn, in_play) = seen, seen
        self._expected = self._read() - self._before + self._work.estimate(turn, in_play)
        playing = f"{min(in_play, self._images)} of {self._images} images"
        self._describe(f"{self._work.turns[turn].name}, {playing}")

    def _end_building(self) -> None:
        if not self._bar.disable and BUILDING in self._bar.desc:
            self._describe()

    def _describe(self, now: str = "") -> None:
        """Show the attack and its radius before the bar, and what it does now."""
        self._bar.set_description_str(f"{self._work.title}: " + (now and f"{now}: "), refresh=False)

    def _show(self) -> None:
        """Move the bar to the passes that were made, and its end to the passes that are expected."""
        now = self._read()
        made = now - self._before
        after = sum(
            (each.batches - (each is self._work and self._in_batch)) * each.estimate() * each.ratio
            for each in self._later
        )
        self._bar.total = round(self._before - self._begun + max(self._expected, made) + after)
        self._bar.update(now - self._begun - self._bar.n)

    def _read(self) -> float:
        return self._workers * passes.passes_so_far().total


def _workers() -> int:
    """Return the number of workers that share each batch; the counters have the passes of this worker alone."""
    strategy = tf.distribute.get_strategy()
    return strategy.num_replicas_in_sync // len(strategy.extended.worker_devices) if in_multi_worker() else 1
