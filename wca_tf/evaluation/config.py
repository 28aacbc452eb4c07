"""The configuration of an evaluation: frozen, checked on construction, and free of TensorFlow.

Every field is a flag of `bin/evaluate`. The help of the flag is in the field's metadata.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from wca_tf.attacks import Attack, BallAttack, parse_attack
from wca_tf.attacks.radii import Radius, check_within_images, parse_radii, split_list
from wca_tf.core.arithmetic import DETERMINISTIC_HELP, TENSOR_FLOAT_32
from wca_tf.core.errors import InputError
from wca_tf.core.options import check_options, flag
from wca_tf.distribution.cluster import STRATEGIES, STRATEGY_HELP
from wca_tf.nets.backbones import PRECISIONS


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """The options of an evaluation of a trained model.

    In Python, `attacks` may be a sequence of texts and attack objects, and `epsilons` a sequence of texts and numbers.
    """

    attacks: str | Sequence[str | Attack] = flag(
        "fgsm,pgd,adaptive",
        "comma-separated; parameters after a colon: pgd:steps=40",
        identity=False,
    )
    epsilons: str | Sequence[str | float] = flag(
        "8/255",
        "comma-separated radii for images in [0, 1], as 0.1, 8/255, or l2:0.5 for attacks of one norm alone",
        identity=False,
    )
    eot_samples: int = flag(50, "noise draws that an attack's gradient averages over (paper: 50)")
    num_examples: int = flag(1000, "attack the first so many images of the split; 0 takes all", minimum=0)
    shard: str = flag(
        "", "i/n, i from 1: only the i-th of n parts of these images; bin/compare merges the reports of all parts"
    )
    split: str = flag(
        "test", "test, or validation (for choices that must not see the test images)", ("test", "validation")
    )
    batch_size: int = flag(
        100, "images attacked at a time; matters to the results only with noise inside the backbone", identity=False
    )
    seed: int = flag(0, "decides the attacks' random starts and draws, and the draws that judge them", minimum=0)
    tfds_data_dir: str = flag(
        "",
        "where TFDS data are; empty: where the training run had them, or with --model ~/tensorflow_datasets",
        identity=False,
    )
    average_draws: int = flag(1, "the net answers with the mean of the logits of so many draws (paper, E2: 10)")
    attack_precision: str = flag(
        "own",
        "what attacks see: the net in its own precision; or a copy whose backbone computes in another, often faster; "
        "or, on GPUs, the net with products in TensorFloat-32. The net itself judges, with all bits of float32",
        ("own", *PRECISIONS, TENSOR_FLOAT_32),
    )
    certified_radii: str = flag(
        "",
        "comma-separated l2 radii (linf:0.01 for l∞) within which P(correct) is certified; empty: none",
        identity=False,
    )
    certified_draws: int = flag(
        100_000, "draws of each image that certify a net with --defence=smoothing", identity=False
    )
    certified_images: int = flag(
        20, "how many images, from the first, are certified with --defence=smoothing", identity=False
    )
    checklist: bool = flag(
        False, "also check, on 100 images, whether the numbers rest on obfuscated gradients", identity=False
    )
    noise_off: bool = flag(
        True,
        "also attack the net without its noise, to say what the noise adds; false takes half the time",
        identity=False,
    )
    known_draws: bool = flag(
        False, "also attack the net under draws that the attack knows, on 100 images; --checklist does", identity=False
    )
    strategy: str = flag("auto", STRATEGY_HELP, STRATEGIES, identity=False)
    deterministic: bool = flag(False, DETERMINISTIC_HELP, identity=False)

    def __post_init__(self) -> None:
        check_options(self, "--")
        certified = parse_radii(self.certified_radii, "--certified_radii") if self.certified_radii else []
        for radius in certified:
            check_within_images(radius.epsilon, radius.norm or "l2", "--certified_radii")
        if self.parsed_shard != (1, 1) and self.checklist:
            raise InputError("expected the checklist without --shard: it needs the first images of the split")
        if max(radius.epsilon for radius in self.parsed_radii) == 0 and self.checklist:
            raise InputError(f"the checklist expects an epsilon above 0, received --epsilons={self.epsilons}")

    @functools.cached_property
    def parsed_attacks(self) -> tuple[Attack, ...]:
        """The attacks, in order; raises InputError for an unknown one."""
        return tuple(
            item if isinstance(item, Attack) else parse_attack(_text(item), eot_samples=self.eot_samples)
            for item in split_list(self.attacks, "--attacks")
        )

    @functools.cached_property
    def parsed_shard(self) -> tuple[int, int]:
        """The number of the part and the number of parts; (1, 1) for all images."""
        if not self.shard:
            return 1, 1
        number, _, parts = self.shard.partition("/")
        if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
            raise InputError(f"expected --shard=i/n with i from 1 to n, received {self.shard!r}")
        return int(number), int(parts)

    @functools.cached_property
    def parsed_radii(self) -> tuple[Radius, ...]:
        """The radii, in order.

        Raises:
            InputError: a radius is out of range, is given twice, or has a norm that no attack can have; or an attack
                names a norm for which no radius is given.
        """
        radii = tuple(parse_radii(self.epsilons))
        attacks = [attack for attack in self.parsed_attacks if isinstance(attack, BallAttack)]
        norms = list(dict.fromkeys(attack.norm for attack in attacks))
        for radius in radii:
            if attacks and not (found := self._attacks_at(radius)):
                raise InputError(f"expected radii for attacks of {' and '.join(norms)}, received one of {radius.norm}")
            for attack in found if attacks else ():
                check_within_images(radius.epsilon, attack.norm, "--epsilons")
        for attack in attacks:
            if not any(radius.norm is None or attack.in_norm(radius.norm) for radius in radii):
                norm = attack.norm
                raise InputError(f"expected a radius in {norm} for the attacks in {norm}, received {self.epsilons}")
        return radii

    def attacks_with_radii(self) -> list[tuple[BallAttack, float]]:
        """Return each attack at each radius, once each. An attack that names no norm takes that of the radius."""
        found: dict[tuple[str, float], tuple[BallAttack, float]] = {}
        for radius in self.parsed_radii:
            for attack in self._attacks_at(radius):
                found.setdefault((attack.name, radius.epsilon), (attack, radius.epsilon))
        return list(found.values())

    def _attacks_at(self, radius: Radius) -> list[BallAttack]:
        """Return the attacks that meet a radius, in the norm that they have there."""
        attacks = [attack for attack in self.parsed_attacks if isinstance(attack, BallAttack)]
        if radius.norm is None:
            return attacks
        return [found for attack in attacks if (found := attack.in_norm(radius.norm))]


def _text(item: Any) -> str:
    """Return an item of `attacks` that is text; raise InputError for one that is neither text nor an attack."""
    if not isinstance(item, str):
        raise InputError(f"expected attacks as text or as attack objects, received {item!r}")
    return item
