"""The configuration of a training run: frozen and checked on construction.

Every field is a flag of `bin/train`; its metadata has the flag's help. This module does not import TensorFlow.
"""

import dataclasses
import functools

from wca_tf.attacks import BallAttack, parse_attack
from wca_tf.attacks.radii import check_within_images, parse_epsilon
from wca_tf.core.arithmetic import DETERMINISTIC_HELP
from wca_tf.core.errors import InputError
from wca_tf.core.options import flag
from wca_tf.data.config import DataConfig
from wca_tf.defences import Defence, parse_defence
from wca_tf.distribution.cluster import STRATEGIES, STRATEGY_HELP
from wca_tf.nets.backbones import BACKBONES, PRECISIONS, backbone_of, backbone_options


@dataclasses.dataclass(frozen=True)
class TrainConfig(DataConfig):
    """The configuration of a training run.

    The defaults suit digits; `configs/` has the paper's values (section 4.1 and appendix B).
    """

    backbone: str = flag(
        "lenet_plus_plus",
        f"feature extractor, one of {', '.join(BACKBONES)}; options after a colon: orthogonal_net:width=128:blocks=4",
    )
    defence: str = flag(
        "wca",
        "none, wca, ...; options after a colon: wca:covariance=isotropic:feature_dim=64. One of your own: module:Class",
    )
    learning_rate: float = flag(1e-3, "of the optimizer, at its highest")
    learning_rate_schedule: str = flag(
        "steps",
        "steps: divided by 10 after each third (the authors' for nets with noise); constant (theirs for nets without); "
        "cosine: up over a fifth of the run, then down to 0",
        ("steps", "constant", "cosine"),
    )
    batch_size: int = flag(128, "images a step, over all devices together")
    epochs: int = flag(
        30,
        "passes over the training images (the authors' code: 600); 0 keeps the layers of --initial_weights as they are",
        minimum=0,
    )
    augmentation: str = flag(
        "none",
        "flip: mirror every second epoch; crop_flip: pad by 4, crop, mirror (CIFAR); translate_flip: flip, and move "
        "by 2 at most (for runs of few epochs); resized_crop_flip: a random rectangle of the image as it is on disk, "
        "resized, mirror (ImageNet)",
        ("none", "flip", "crop_flip", "translate_flip", "resized_crop_flip"),
    )
    optimizer: str = flag(
        "adam",
        "adam (paper); nesterov: gradient descent with momentum 0.9; orthogonal_muon: for --backbone=orthogonal_net, "
        "at 0.03; orthogonal_nesterov: the same without Muon's sign",
        ("adam", "nesterov", "orthogonal_muon", "orthogonal_nesterov"),
    )
    others_learning_rate: float = flag(
        3e-3, "of Adam for the weights that are not orthogonal, with --optimizer=orthogonal_..."
    )
    label_smoothing: float = flag(0.0, "share of each label that is given to all classes alike", minimum=0, maximum=1)
    validation_split: float = flag(
        0.1,
        "share of the training images kept aside to choose the best epoch; 0: train on all, the last epoch is best",
        minimum=0,
    )
    max_train_examples: int = flag(0, "use at most so many training images; 0 uses all", minimum=0)
    precision: str = flag(
        "float32",
        "the backbone's; the noise and logits stay float32 (mixed_float16, with loss scaling, is for GPUs)",
        PRECISIONS,
    )
    tensor_float_32: bool = flag(
        True,
        "GPUs multiply float32 in TensorFloat-32 in training, as TensorFlow does by default; attacks and judgement of "
        "bin/evaluate never do by default",
    )
    jit_compile: bool = flag(False, "compile the training step with XLA, on one GPU; slower on CPUs, and refused")
    adversarial: str = flag(
        "none",
        "adversarial training: at on attacked images alone, ct_at on clean ones too",
        ("none", "at", "ct_at"),
    )
    adversarial_attack: str = flag(
        "pgd",
        "of adversarial training: by what, as in bin/evaluate --attacks; fgsm_rs is fast. With noise in the backbone "
        "each of 50 draws is a pass of the net: eot_samples=1 is cheaper",
    )
    adversarial_epsilon: str = flag("8/255", "of adversarial training: the attack's radius")
    margin_radius: float = flag(
        0.0,
        "l2 radius to certify, with --backbone=lipschitz_cnn or orthogonal_net: the loss raises every other logit by "
        "what an attack of this radius can gain; 0: cross-entropy",
        minimum=0,
    )
    temperature: float = flag(1.0, "the loss divides the logits by it")
    initial_weights: str = flag(
        "",
        "directory of a trained net, whose layers this one starts from; the noise of wca starts anew, that within "
        "layers (adv_bnn, ctrw, l2p, pni) is copied",
    )
    seed: int = flag(0, "decides the weights' start, the order of images, and the noise", minimum=0)
    strategy: str = flag("auto", STRATEGY_HELP, STRATEGIES, identity=False)
    deterministic: bool = flag(False, DETERMINISTIC_HELP, identity=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_backbone()
        self.parsed_defence.check(self.initial_weights, self._adversarial_flags())
        self._check_adversarial()
        if not self.epochs and not self.initial_weights:
            raise InputError("expected --initial_weights=DIR with --epochs=0, whose net is kept; received no directory")
        if self.validation_split >= 1:
            raise InputError(f"expected --validation_split from 0 to below 1, received {self.validation_split}")
        if self.crops_files and self.in_memory == "true":
            raise InputError(
                "expected --in_memory=auto or false with --augmentation=resized_crop_flip and --image_size, which cuts "
                "rectangles out of the files; received true"
            )

    def _check_backbone(self) -> None:
        """Raise InputError for a wrong backbone, or for options that need a Lipschitz or an orthogonal one."""
        try:
            _, lipschitz = backbone_options(self.backbone), backbone_of(self.backbone).lipschitz
        except InputError as error:
            raise InputError(f"--backbone: {error}") from None
        if self.margin_radius and not lipschitz:
            known = ", ".join(name for name, backbone in BACKBONES.items() if backbone.lipschitz)
            raise InputError(f"expected --margin_radius with --backbone among {known}; received {self.backbone}")
        if lipschitz and not self.parsed_defence.on_lipschitz:
            raise InputError(
                f"expected --defence=none or wca with --backbone={self.backbone}, which stay Lipschitz; received "
                f"{self.defence}"
            )
        is_orthogonal = self.optimizer.startswith("orthogonal")
        if self.others_learning_rate != TrainConfig.others_learning_rate and not is_orthogonal:
            raise InputError(
                f"expected --others_learning_rate with --optimizer=orthogonal_muon; received {self.optimizer}"
            )
        if is_orthogonal and lipschitz != "orthogonal":
            raise InputError(
                f"expected --optimizer={self.optimizer} with --backbone=orthogonal_net, which has orthogonal weights; "
                f"received {self.backbone}"
            )

    @property
    def crops_files(self) -> bool:
        return self.augmentation == "resized_crop_flip" and self.image_size > 0 and self.dataset != "digits"

    def _check_adversarial(self) -> None:
        """Raise InputError for options of adversarial training that are wrong, or that nothing would use."""
        _ = self.parsed_adversarial_attack, self.parsed_adversarial_epsilon
        for name in self._adversarial_flags() if self.adversarial == "none" else ():
            raise InputError(f"expected --adversarial=at or ct_at with --{name}; received --adversarial=none")
        if self.adversarial != "none" and self.parsed_adversarial_epsilon == 0:
            raise InputError("expected --adversarial_epsilon above 0 with --adversarial, received 0")

    def _adversarial_flags(self) -> list[str]:
        """Return the names of the flags that say which attack adversarial training has, where they are given."""
        names = ("adversarial_attack", "adversarial_epsilon")
        return [name for name in names if getattr(self, name) != getattr(TrainConfig, name)]

    @functools.cached_property
    def parsed_defence(self) -> Defence:
        """The defence; raises InputError for an unknown defence."""
        try:
            return parse_defence(self.defence)
        except InputError as error:
            raise InputError(f"--defence: {error}") from None

    @functools.cached_property
    def parsed_adversarial_attack(self) -> BallAttack:
        """The attack of adversarial training; raises InputError for an attack without a radius, or towards a class."""
        try:
            attack = parse_attack(self.adversarial_attack)
        except InputError as error:
            raise InputError(f"--adversarial_attack: {error}") from None
        if not isinstance(attack, BallAttack) or attack.targeted:
            raise InputError(
                f"expected an attack in a ball, away from the label, as --adversarial_attack; received {attack.name}"
            )
        return attack

    @functools.cached_property
    def parsed_adversarial_epsilon(self) -> float:
        """The radius of adversarial training, in the images' [0, 1] units."""
        epsilon = parse_epsilon(self.adversarial_epsilon, "--adversarial_epsilon")
        check_within_images(epsilon, self.parsed_adversarial_attack.norm, "--adversarial_epsilon")
        return epsilon
