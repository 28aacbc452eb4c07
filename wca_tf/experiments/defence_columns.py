"""The columns of the table of the experiment "defences", and what they mean."""

from wca_tf.experiments.baselines import BUDGET, FEW_IMAGES, KNOWING, NOISE_IMAGES
from wca_tf.experiments.noise_numbers import RATIO
from wca_tf.experiments.paper import EPSILON
from wca_tf.experiments.tables import Table

PROTOCOL, WORST, TWIN = "authors' protocol", "worst case, expected", "noise off: worst case"
SAME_INFERENCE = "worst case, their inference"
OVERSTATES, TWIN_OVERSTATES = "protocol overstates by", "noise off: protocol overstates by"
ADDS, TWICE, SEEDS = "the noise adds", "twice the draws", "worst case, 3 seeds"
MARGIN = "pgd:steps=20:objective=expected_margin"  # the attack that is made with twice the draws too
STRONG = {"pgd": "PGD, EoT", MARGIN: "margin, EoT", "single_draw": "single draw"}
STRONG["transfer:source_objective=dlr"] = "transfer"
COLUMNS = (
    *("clean", "authors' claim", PROTOCOL, SAME_INFERENCE, OVERSTATES, *STRONG.values(), "adaptive", "Square"),
    *("knows the draw", WORST, "100 queries", "majority vote", "noise off: clean", TWIN, ADDS, TWIN_OVERSTATES, TWICE),
    *("PGD at 0.1", "worst case at 0.1", "noise off: at 0.1", SEEDS, RATIO, "images", "epochs"),
    *("trained as", "in training"),
)
MEANINGS = (
    "authors' claim: clean / attacked, CIFAR-10, as the paper quotes it or the authors print it",
    f"{PROTOCOL}: their attack as coded, at {EPSILON} here, and their inference: one draw of the noise; the mean "
    "softmax of 50 draws for RSE and Adv-BNN; –: they attack nothing. WCA-Net's is the PGD of "
    "its paper, SE-SNN's the FGSM of its paper",
    "RSE's and Adv-BNN's protocol: the PGD of Adv-BNN's code, with the 10 steps of its training; its evaluation "
    "takes 3 to 1,000 steps. RSE's own code has C&W",
    f"{SAME_INFERENCE}: for RSE and Adv-BNN a majority vote of all draws in the worst case, for others one draw",
    f"{OVERSTATES}: P(correct) under their attack (RSE, Adv-BNN: whether the mean softmax is right) less that worst "
    f"case, in points, paired over the images. For one draw it differs from {PROTOCOL} less the worst case, because "
    "there a single draw is counted",
    f"{TWIN_OVERSTATES}: the same for the net without its noise: as much has nothing to do with noise",
    "majority vote: the share of images that more than half of all draws get right, in the worst case; a vote that "
    "needs no half may be right on more",
    "noise off: the same net without its noise, under its own worst case by PGD, adaptive and the authors' attack",
    f"{ADDS}: the worst case of one draw by these attacks less that of the net without its noise, paired over the "
    f"images. Rows of different nets differ by their training too: see {SEEDS}",
    f"{RATIO}: deviation of the difference between the label's logit and the nearest other class's over draws, over "
    f"the size of its mean; each a mean over {NOISE_IMAGES} clean images",
    f"knows the draw: {KNOWING} alone, so an upper bound; the attack knows the draw; mean of 8 draws",
    f"{SEEDS}: nets that differ in their seed alone, by adaptive alone; most rows were trained once",
    "AT: on images attacked by FGSM-RS alone, for every defence, averaged over draws for WCA-Net and SE-SNN; these "
    "are not the authors' own recipes",
    "claims: RSE's numbers are those that PNI prints, Adv-BNN's those that Learn2Perturb prints",
    "PGD, EoT: 10 steps of a tenth of the radius, so a pixel moves by the radius at most; FGSM may leave less",
    "epochs (RFD: the noise is added without training): the epoch whose net is judged: the best on validation "
    "images; with AT, on training images under PGD",
    "in training, AT alone: 256 training images under PGD, and under the attack of training",
    "every image has its own draws; the authors of PNI, Learn2Perturb, Adv-BNN and CTRW share a draw in a batch",
    "all nets: Adam; most authors use SGD. Learn2Perturb learns its noise from the first epoch, together "
    "with the weights",
    "RFD's protocol: Square's search ends when other draws confirm the error: P(correct) of 0.01 or less; the "
    "authors' when most of 9 more draws err. They have 10,000 queries, not 1,000, and first squares of 0.05 of the "
    "image, not 0.8. RFD here is noise on the last features alone; the authors' default has noise after every stage",
    "Adv-BNN: its weights deviate by 0.01 at first; 0.05 drowns the signal of LeNet++, without batch normalisation",
    f"{TWICE}: {MARGIN} whose gradients average over twice as many draws, less the same without, in points. Its "
    "interval has two more images, which differ by 1 and -1 (Agresti and Min), and is wider than two standard errors",
    f"{WORST}, with noise before the last features: half of the draws choose the attack, and the other half judge it, "
    "so that it may be 0.1 points above the column of one attack",
    f"{FEW_IMAGES} images: nets with noise before their last features, and nets without noise to compare with; "
    f"{BUDGET}; not at 0.1",
    "nets with noise before their last features end in one dense layer, the other nets in two",
    "at 0.1: PGD, adaptive and the authors' protocol",
)


def notes_of(table: Table, moved: dict[str, float | None]) -> list[str]:
    """Return what the columns mean, and which rows twice the draws move.

    Args:
        table: the table, for the values of the column `TWICE`.
        moved: for each row the standard errors that twice the draws move it by; `None` for a net without noise.
    """
    errors = {label: errors for label, errors in moved.items() if errors is not None}
    above = [
        f"{label} ({number:+.1f} errors, {table.rows[label][TWICE].text} points)"
        for label, number in errors.items()
        if abs(number) > 2
    ]
    moved_rows = (
        f"rows that twice the draws move by more than two paired standard errors: {', '.join(above) or 'no row'}, of "
        f"{len(errors)}; by chance one row of 20"
    )
    return [*MEANINGS, moved_rows]
