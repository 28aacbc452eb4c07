"""The nets of orthogonal layers whose certificates are measured: their radii, attacks, and epochs that are kept."""

from __future__ import annotations

import dataclasses

from reproduce.nets import Net

RADII = {
    "digits": ("l2:0.1",),
    "cifar10": ("l2:36/255", "l2:72/255", "l2:108/255", "l2:1.0"),
    "mnist": ("l2:0.3", "l2:1.58"),
    "fashion_mnist": ("l2:0.3", "l2:1.0"),
}
SETS = ("cifar10", "mnist", "fashion_mnist")
ATTACKS = {
    "tiny": ("pgd:steps=3:norm=l2",),
    "small": ("pgd:steps=40:norm=l2", "apgd_ce:steps=50:norm=l2", "margin:steps=40:norm=l2"),
    "paper": ("pgd:steps=40:norm=l2", "apgd_ce:steps=50:norm=l2"),  # on all images
}
KEPT = (1, 2, 4, 8, 16, 32, 64, 96, 128)  # epochs; and the last


def net_of(dataset: str, scale: str) -> Net:
    """Return the net of a data set whose certificates are compared to others', with the epochs that are kept."""
    net = Net(dataset, "orthogonal_long" if dataset == "cifar10" else "orthogonal_none")
    return _kept(net, scale) if dataset in ("cifar10", "digits") else net


def _kept(net: Net, scale: str) -> Net:
    last = net.config(scale)["epochs"]
    return dataclasses.replace(net, epochs_kept=(*(epoch for epoch in KEPT if epoch < last), last))


def along_of(dataset: str, scale: str) -> dict[str, Net]:
    """Return the trainings whose epochs are judged, by label; those that keep no epochs are judged at their end."""
    nets = [net_of(dataset, scale)]
    if dataset == "cifar10":
        aol, short = Net(dataset, "certified_none").but(epochs=20), Net(dataset, "orthogonal_none")
        short = _kept(short.but(augmentation="flip"), scale)
        longest = _kept(Net(dataset, "orthogonal_hours"), scale)
        nets = [_kept(aol, scale), short, Net(dataset, "orthogonal_minutes"), *nets, longest]
    return {_kind(net, scale): net for net in nets}


def trained_longest(dataset: str, scale: str) -> dict[str, Net]:
    """Return the nets, at their last epochs, that are judged on training images too, by label."""
    wanted = (
        ("orthogonal_minutes", "orthogonal_long", "orthogonal_hours") if dataset == "cifar10" else ("orthogonal_none",)
    )
    nets = {label: net for label, net in along_of(dataset, scale).items() if net.variant in wanted}
    return {label: dataclasses.replace(net, epoch=(net.epochs_kept or (0,))[-1]) for label, net in nets.items()}


def _kind(net: Net, scale: str) -> str:
    """Return the name of a training in the table and the figure, such as "orthogonal, width 96, 116 epochs"."""
    config = net.config(scale)
    _, _, options = config["backbone"].partition(":")
    family = "AOL's layers" if net.variant.startswith("certified") else "orthogonal"
    return ", ".join([family, *([options.replace("=", " ")] if options else []), f"{config['epochs']} epochs"])
