"""Every number that the paper prints in a table, as it prints it, in %; no other module has them."""

RADII = {f"{2**n}/255": 2**n / 255 for n in range(8)}  # as written -> in the images' [0, 1] units

# Table 5, at 8/255: data set -> clean, FGSM, PGD without noise, with isotropic and with anisotropic noise.
ABLATION: dict[str, tuple[tuple[float, float, float], ...]] = {
    "cifar10": ((93.3, 14.9, 3.9), (93.1, 60.7, 55.9), (93.2, 77.6, 71.4)),
    "cifar100": ((72.2, 12.3, 1.2), (70.1, 27.5, 21.8), (70.1, 51.5, 42.7)),
    "svhn_cropped": ((93.4, 55.6, 23.5), (93.4, 45.0, 40.1), (93.4, 87.6, 85.7)),
    "fashion_mnist": ((90.8, 26.4, 12.0), (90.1, 63.5, 37.2), (90.1, 65.2, 48.5)),
}
# Table 6, on CIFAR-10 at 8/255: clean, FGSM, PGD.
CONTROLS = {
    "No Defense": (93.3, 14.9, 3.9),
    "penalty": (93.2, 77.6, 71.4),
    "constraint": (92.2, 62.9, 53.2),
    "E1: test without EoT": (93.2, 82.9, 75.1),
    "E2: average 10 draws": (93.2, 70.3, 68.8),
    "E3: noise trained alone": (93.1, 45.0, 41.6),
    "WCA-Net: AT": (88.1, 75.4, 70.4),
    "WCA-Net: CT+AT": (90.0, 75.6, 70.7),
}
# Table 4, on CIFAR-10: clean, then a number for each of RADII.
STRONGER = {
    ("pgd_restarts", "No Defense"): (93.3, 45.3, 14.6, 0, 0, 0, 0, 0, 0),
    ("pgd_restarts", "WCA-Net"): (93.2, 73.2, 72.2, 72.1, 71.2, 69.7, 56.4, 28.2, 10.5),
    ("square", "No Defense"): (93.3, 32.9, 31.7, 12.4, 6.0, 1.2, 0, 0, 0),
    ("square", "WCA-Net"): (93.2, 51.7, 51.7, 50.4, 49.0, 48.8, 44.3, 36.9, 28.6),
}
# Table 2, WCA-Net on CIFAR-10: its clean accuracy; κ -> accuracy under C&W; n -> accuracy under n-pixel.
CLEAN_OF_TABLE_2 = 93.2
CW = {"0.1": 89.4, "1": 78.4, "2": 71.9, "5": 55.0}
PIXELS = {1: 90.8, 2: 85.5, 3: 81.2, 5: 64.3}
# Table 9: Wide-ResNet-34-10 on CIFAR-10, clean, then PGD at each of RADII.
WIDE = {"No Defense": (97, 63, 60, 26, 12, 0, 0, 0, 0), "WCA-Net": (97, 80, 80, 77, 73, 70, 34, 10, 0)}
# Table 7, at 8/255: clean, FGSM, PGD.
IMAGENET = {
    ("imagenette", "No Defense"): (75.5, 8.4, 0.0),
    ("imagenette", "WCA-Net"): (74.2, 59.3, 48.7),
    ("mini_imagenet", "No Defense"): (51.9, 5.0, 0.0),
    ("mini_imagenet", "WCA-Net"): (51.3, 41.6, 30.4),
}
# Appendix B: the learning rate and weight decay that the paper chose.
CHOSEN = {"cifar10": (1e-2, 1e-4), "fashion_mnist": (1e-4, 1e-4)}
