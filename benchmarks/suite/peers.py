"""The worker of the peers: their attacks on the same nets in torch. Started by main.py, in .benchmarks."""

import functools
import os
from collections.abc import Callable
from typing import Any

import foolbox
import numpy as np
import torch
import torchattacks
from art.attacks import evasion
from art.estimators.classification import PyTorchClassifier
from cleverhans.torch.attacks.fast_gradient_method import fast_gradient_method
from cleverhans.torch.attacks.projected_gradient_descent import projected_gradient_descent

from benchmarks.suite import plan, torch_training
from benchmarks.suite.plan import EPSILON, STEP
from benchmarks.suite.process import Job, serve
from benchmarks.suite.torch_nets import Arrays, TorchNet, differences, to_keras, to_torch

Attack = Callable[[], torch.Tensor]


@functools.cache
def arrays_of(net: str) -> Arrays:
    with np.load(plan.weights_file(net)) as file:
        return dict(file)


def prepare(job: dict[str, Any]) -> Job:
    """Make the job of a kind: agreement, training or attack."""
    arrays, kind = arrays_of(job["net"]), job["kind"]
    if kind == "agreement":
        return Job(told=differences(job["net"], arrays))
    if kind == "training":
        return torch_training.prepare(job, arrays)
    # Fixed weights spare peers that call `backward` those gradients.
    net = TorchNet(job["net"], arrays, noisy=job.get("draws", 0) > 0).eval().requires_grad_(False)
    return attack_on(net, arrays, job)


def attack_on(net: TorchNet, arrays: Arrays, job: dict[str, Any]) -> Job:
    """Prepare an attack, which tells after its first run how many passes an image was given."""
    images = to_torch(arrays["images"][: job["images"]])
    labels = torch.tensor(arrays["labels"][: job["images"]])
    told: dict[str, Any] = {}

    def check(result: torch.Tensor) -> None:
        plan.check_result(job["attack"], to_keras(torch.as_tensor(result)), to_keras(images))
        told["forward_passes"] = net.forward_images / len(images)

    return Job(LIBRARIES[job["library"]](net, images, labels, job), check, told)


def by_foolbox(net: TorchNet, images: torch.Tensor, labels: torch.Tensor, job: dict[str, Any]) -> Attack:
    model: Any = foolbox.PyTorchModel(net, bounds=(0, 1), device="cpu")
    if job["draws"] > 1:
        model = foolbox.models.ExpectationOverTransformationWrapper(model, n_steps=job["draws"])
    criterion, attacks, name = foolbox.criteria.Misclassification(labels), foolbox.attacks, job["attack"]
    pgd = attacks.LinfPGD(abs_stepsize=STEP, steps=job["units"], random_start=True)
    if name == "pgd_restarts":
        repeated = pgd.repeat(plan.RESTARTS)  # has no `run`
        return lambda: repeated(model, images, criterion, epsilons=EPSILON)[1]
    if name == "cw":
        searches, rate, constant = plan.CW_SEARCHES, plan.CW_LEARNING_RATE, plan.CW_CONSTANT
        cw = attacks.L2CarliniWagnerAttack(searches, job["units"], rate, initial_const=constant, abort_early=False)
        return lambda: _or_clean(cw.run(model, images, criterion), images)
    attack = attacks.LinfFastGradientAttack() if name == "fgsm" else pgd
    return lambda: attack.run(model, images, criterion, epsilon=EPSILON)  # not the call, which also judges the result


def _or_clean(result: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Return the images in place of the black ones that Foolbox's C&W returns where it finds nothing."""
    return result if result.any() else images


def by_art(net: TorchNet, images: torch.Tensor, labels: torch.Tensor, job: dict[str, Any]) -> Attack:
    loss, shape = torch.nn.CrossEntropyLoss(), tuple(images.shape[1:])
    classifier = PyTorchClassifier(net, loss, shape, plan.NUM_CLASSES, clip_values=(0, 1), device_type="cpu")
    units, batch = {"max_iter": job["units"], "verbose": False}, {"batch_size": len(images)}
    step = {"eps": EPSILON, "eps_step": STEP, **units, **batch}
    searched = {"learning_rate": plan.CW_LEARNING_RATE, "initial_const": plan.CW_CONSTANT}
    makers: dict[str, Callable[[], Any]] = {
        "fgsm": lambda: evasion.FastGradientMethod(classifier, eps=EPSILON, **batch),
        "pgd": lambda: evasion.ProjectedGradientDescent(classifier, num_random_init=1, **step),
        "pgd_restarts": lambda: evasion.ProjectedGradientDescent(classifier, num_random_init=plan.RESTARTS, **step),
        "apgd": lambda: evasion.AutoProjectedGradientDescent(
            classifier, nb_random_init=1, loss_type="cross_entropy", **{**step, "eps_step": 2 * EPSILON}
        ),
        "cw": lambda: evasion.CarliniL2Method(
            classifier, binary_search_steps=plan.CW_SEARCHES, **searched, **units, **batch
        ),
        "square": lambda: evasion.SquareAttack(classifier, eps=EPSILON, **units, **batch),
        "n_pixel": lambda: evasion.PixelAttack(classifier, th=1, es=1, **units),
    }
    attack = makers[job["attack"]]()
    inputs, targets = images.numpy(), labels.numpy()
    return lambda: torch.tensor(attack.generate(inputs, targets))


def by_torchattacks(net: TorchNet, images: torch.Tensor, labels: torch.Tensor, job: dict[str, Any]) -> Attack:
    units, draws = job["units"], job["draws"]

    def pgd() -> Any:
        return torchattacks.PGD(net, EPSILON, STEP, units)

    makers: dict[str, Callable[[], Any]] = {
        "fgsm": lambda: torchattacks.FGSM(net, EPSILON),
        "pgd": lambda: torchattacks.EOTPGD(net, EPSILON, STEP, units, draws) if draws else pgd(),
        "pgd_restarts": lambda: torchattacks.MultiAttack([pgd() for _ in range(plan.RESTARTS)]),
        "apgd": lambda: torchattacks.APGD(net, eps=EPSILON, steps=units),
        "square": lambda: torchattacks.Square(net, eps=EPSILON, n_queries=units),
        "n_pixel": lambda: torchattacks.OnePixel(
            net, steps=units, popsize=plan.POPULATION, inf_batch=plan.IMAGES_PER_PASS
        ),
    }
    return functools.partial(makers[job["attack"]](), images, labels)


def by_cleverhans(net: TorchNet, images: torch.Tensor, labels: torch.Tensor, job: dict[str, Any]) -> Attack:
    bounds = {"clip_min": 0.0, "clip_max": 1.0, "y": labels}
    if job["attack"] == "fgsm":
        return lambda: fast_gradient_method(net, images, EPSILON, np.inf, **bounds)
    return lambda: projected_gradient_descent(net, images, EPSILON, STEP, job["units"], np.inf, **bounds)


LIBRARIES = {"Foolbox": by_foolbox, "ART": by_art, "torchattacks": by_torchattacks, "CleverHans": by_cleverhans}


def start(prepare: Callable[[dict[str, Any]], Job]) -> None:
    """Be a worker with as many threads as the environment tells."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    serve(prepare)


if __name__ == "__main__":
    start(prepare)
