"""Attacks by name.

An attack is a frozen dataclass in a file of its own: its options, and its algorithm as the method `perturb`, which sees
a `Target` (wca_tf.nets.targets), never a model. names.py gives it a name. The call `attack(model, images, labels,
epsilon)` is a pure function: it returns adversarial images and their effect on the net (attack.py). The geometry is in
balls.py, the objectives that attacks maximise in objectives.py. TensorFlow loads when an attack is called.
"""

from wca_tf.attacks.attack import Attack, AttackResult, BallAttack
from wca_tf.attacks.names import ATTACKS, kind_of, parse_attack, quick_text
from wca_tf.core.options import option

__all__ = ["ATTACKS", "Attack", "AttackResult", "BallAttack", "kind_of", "option", "parse_attack", "quick_text"]
