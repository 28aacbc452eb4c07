import dataclasses
import json
import math
import subprocess
import sys

import pytest

from wca_tf.attacks import ATTACKS, parse_attack
from wca_tf.attacks.pgd import ProjectedGradient
from wca_tf.core.errors import InputError
from wca_tf.core.options import identity
from wca_tf.data.config import DataConfig
from wca_tf.data.preflight import check_dataset_present
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.plan import trials_of
from wca_tf.runs.config import TrainConfig

BAD_TRAINING = [
    ("image_size", [-1]),
    ("backbone", ["lenet", ""]),
    ("adversarial_attack", ["", "cw", "pgd:targeted=true"]),
    ("adversarial_epsilon", ["", "2", "-1/255"]),
    ("learning_rate", [0.0, -1.0, math.nan, math.inf]),
    ("others_learning_rate", [0.0, math.nan]),
    ("batch_size", [0, -1]),
    ("epochs", [0, -1]),
    ("augmentation", ["rotate"]),
    ("optimizer", ["sgd"]),
    ("label_smoothing", [-0.1, 1.1, math.nan]),
    ("margin_radius", [-0.1, math.inf]),
    ("temperature", [0.0, -1.0]),
    ("validation_split", [1.0, -0.1, 1.5, math.nan]),
    ("max_train_examples", [-1]),
    ("precision", ["float16"]),
    ("seed", [-1, 2**31, 2**40]),
]
BAD_EVALUATION = [
    ("attacks", ["", " , ", "fgsm,fgsm"]),
    ("epsilons", ["", ",", "abc", "1/0", "-0.1", "-1/255", "1.5", "256/255", "nan", "inf", "0.1,0.1", "0.1;0.2"]),
    ("eot_samples", [0, -1]),
    ("num_examples", [-1]),
    ("split", ["train", ""]),
    ("batch_size", [0]),
    ("seed", [-1, 2**31, 2**40]),
]


@pytest.mark.parametrize(("flag", "value"), [(flag, value) for flag, values in BAD_TRAINING for value in values])
def test_a_bad_training_value_is_an_input_error_that_names_the_flag(flag, value):
    with pytest.raises(InputError, match=f"--{flag}") as raised:
        TrainConfig(**{flag: value})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("flag", "value"), [(flag, value) for flag, values in BAD_EVALUATION for value in values])
def test_a_bad_evaluation_value_is_an_input_error_that_names_the_flag(flag, value):
    with pytest.raises(InputError, match=f"--{flag}") as raised:
        EvaluateConfig(**{flag: value})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("config_class", [TrainConfig, EvaluateConfig])
def test_every_field_has_a_help_text_and_the_defaults_are_accepted(config_class):
    config = config_class()
    for field in dataclasses.fields(config_class):
        assert field.metadata["help"]
        if field.metadata["bounds"].choices:
            assert getattr(config, field.name) in field.metadata["bounds"].choices


@pytest.mark.parametrize("defence", ["none:temperature=1e-300", "none:weight_decay=1e300", "smoothing:deviation=1e35"])
def test_options_outside_of_float32_are_refused(defence):
    with pytest.raises(InputError, match="to be 0 or from 1e-30 to 1e\\+30"):
        TrainConfig(defence=defence)


def test_the_values_at_the_edge_are_accepted():
    TrainConfig(batch_size=1, epochs=1, max_train_examples=0, seed=0)
    TrainConfig(seed=2**31 - 1)
    EvaluateConfig(epsilons="0,1", num_examples=0, eot_samples=1, batch_size=1)


def test_a_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().seed = 1


def test_a_configuration_survives_json():
    config = TrainConfig(seed=5, learning_rate=3e-3, dataset="mnist")
    assert TrainConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_epsilons_are_exact_and_in_order():
    config = EvaluateConfig(epsilons="8/255, 0.1,0,1,1e-3,16/255")
    assert [radius.epsilon for radius in config.parsed_radii] == [8 / 255, 0.1, 0.0, 1.0, 1e-3, 16 / 255]


@pytest.mark.parametrize("epsilons", ["0.1,1/10", "0.1,0.10", "0,0.0"])
def test_one_epsilon_written_in_two_ways_is_a_duplicate(epsilons):
    with pytest.raises(InputError, match="--epsilons"):
        EvaluateConfig(epsilons=epsilons)


def test_an_attack_has_the_papers_parameters_and_those_written_after_it():
    assert parse_attack("pgd", eot_samples=7).options() == {
        "objective": "ce",
        "steps": 10,
        "relative_step_size": 0.1,
        "random_start": True,
        "norm": "linf",
        "targeted": False,
        "eot_samples": 7,
    }
    changed = parse_attack("pgd:steps=40:relative_step_size=0.25:random_start=False:norm=l2:eot_samples=3")
    assert changed.options() == {
        "objective": "ce",
        "steps": 40,
        "relative_step_size": 0.25,
        "random_start": False,
        "norm": "l2",
        "targeted": False,
        "eot_samples": 3,
    }
    assert parse_attack("pgd").steps == 10  # the defaults did not change


def test_fgsm_is_one_whole_step_from_the_image():
    fgsm = parse_attack("fgsm")
    assert (fgsm.steps, fgsm.relative_step_size, fgsm.random_start) == (1, 1.0, False)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_can_be_named_in_an_evaluation(name):
    [attack] = EvaluateConfig(attacks=name, eot_samples=9).parsed_attacks
    assert attack.name == name
    own = {"auto_rand": 20, "bounded": 10, "adaptive": 10}  # AutoAttack's, and ours where each draw costs a pass
    assert attack.eot_samples == own.get(name, 9)
    assert attack.targeted is False


@pytest.mark.parametrize(
    ("attack", "named"),
    [
        ("pdg", "pdg"),
        ("PGD", "PGD"),
        ("pgd:stepps=3", "stepps"),
        ("pgd:steps", "steps"),
        ("pgd:", "option"),
        ("pgd:epsilon=0.1", "epsilon"),
        ("pgd:steps=abc", "steps"),
        ("pgd:steps=1.5", "steps"),
        ("pgd:steps=", "steps"),
        ("pgd:steps=0", "steps"),
        ("pgd:steps=-4", "steps"),
        ("pgd:eot_samples=0", "eot_samples"),
        ("pgd:relative_step_size=0", "relative_step_size"),
        ("pgd:relative_step_size=nan", "relative_step_size"),
        ("pgd:relative_step_size=inf", "relative_step_size"),
        ("pgd:random_start=maybe", "random_start"),
        ("pgd:norm=l1", "norm"),
        ("pgd:objective=loss", "objective"),
        ("pgd:targeted=maybe", "targeted"),
        ("z_margin:norm=l1", "norm"),
        ("cw:norm=linf", "norm=linf"),
        ("n_pixel:norm=linf", "norm=linf"),
        ("n_pixel:pixels=0", "pixels"),
        ("n_pixel:pixels=101", "pixels from 1 to 100"),
        ("cw:confidence=-1", "confidence"),
        ("cw:confidence=inf", "confidence"),
        ("square:stop_at=-0.1", "stop_at"),
        ("square:resample_noise=maybe", "resample_noise to be true or false, received 'maybe'"),
        ("square:resample_noise=", "resample_noise"),
        ("z_margin:restarts=0", "restarts"),
        ("margin:restarts=ten", "restarts to be a whole number"),
        ("pgd:restarts=2", "restarts"),
        ("n_pixel:objective=ce", "objective among probability, margin; received 'ce'"),
        ("cw:objective=probability", "objective"),
        ("adaptive:queries=0", "queries"),
        ("adaptive:objective=margin", "objective"),
        ("apgd_ce:rho=0", "rho"),
        ("transfer:source_objective=loss", "source_objective"),
        ("random_sampling:points=0", "points"),
        ("pgd:steps=1000001", "steps from 1 to 1000000"),
        ("n_pixel:population=3", "population from 4"),
        ("n_pixel:crossover=1.1", "crossover from 0 to 1"),
        ("cw:objective=dlr", "objective among expected_margin, margin, z_margin"),
    ],
)
def test_a_wrong_attack_is_an_input_error_that_names_what_is_wrong(attack, named):
    with pytest.raises(InputError, match=named):
        parse_attack(attack)
    with pytest.raises(InputError, match=named):
        EvaluateConfig(attacks=f"fgsm,{attack}")


def test_a_confidence_and_a_bound_may_be_zero():
    assert parse_attack("cw:confidence=0").confidence == 0
    assert parse_attack("square:stop_at=0").stop_at == 0


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_a_flag_that_is_true_or_false_is_nothing_else(value):
    with pytest.raises(InputError, match="--checklist to be true or false"):
        EvaluateConfig(checklist=value)


def test_a_radius_may_be_of_one_norm_alone():
    config = EvaluateConfig(attacks="pgd,pgd:norm=l2,cw", epsilons="0.1,l2:0.5,linf:8/255")
    assert [(radius.epsilon, radius.norm) for radius in config.parsed_radii] == [
        (0.1, None),
        (0.5, "l2"),
        (8 / 255, "linf"),
    ]
    trials = [(trial.name, trial.radius and trial.radius.epsilon) for trial in trials_of(config)]
    assert trials == [
        ("pgd", 0.1),
        ("pgd:norm=l2", 0.1),
        ("pgd:norm=l2", 0.5),
        ("pgd", 8 / 255),
        ("cw", None),
    ]


@pytest.mark.parametrize("epsilons", ["l1:0.5", "l2:", ":0.5", "l2:0.5,l2:1/2", "linf:1.5", "l2:-1"])
def test_a_wrong_radius_of_a_norm_is_refused(epsilons):
    with pytest.raises(InputError, match="--epsilons|a norm among"):
        EvaluateConfig(attacks="pgd,pgd:norm=l2", epsilons=epsilons)
    with pytest.raises(InputError, match="attacks of linf, received one of l2"):
        EvaluateConfig(attacks="pgd:norm=linf", epsilons="l2:0.5")


def test_an_attack_that_names_no_norm_takes_that_of_the_radius():
    config = EvaluateConfig(epsilons=["l2:0.5", "0.1"])  # with the attacks by default
    names = EvaluateConfig.attacks.split(",")
    trials = [(trial.name, trial.radius.norm, trial.radius.epsilon) for trial in trials_of(config)]
    assert trials == [
        *((f"{name}:norm=l2", "l2", 0.5) for name in names),
        *((name, "linf", 0.1) for name in names),
    ]
    with pytest.raises(InputError, match="attacks of linf, received one of l2"):  # an object's norm is the user's
        EvaluateConfig(attacks=[ProjectedGradient()], epsilons="l2:0.5")


def test_an_attack_whose_norm_has_no_radius_is_refused():
    with pytest.raises(InputError, match="expected a radius in linf for the attacks in linf, received l2:0.5"):
        EvaluateConfig(attacks="pgd:norm=linf,pgd:norm=l2", epsilons="l2:0.5")


def test_a_radius_in_l2_may_be_above_one():
    radii = EvaluateConfig(attacks="pgd:norm=l2,cw", epsilons="0.5,3").parsed_radii
    assert [radius.epsilon for radius in radii] == [0.5, 3.0]
    with pytest.raises(InputError, match="--epsilons"):
        EvaluateConfig(attacks="pgd", epsilons="0.5,3")


@pytest.mark.parametrize("epsilons", ["inf", "nan", "-1"])
def test_a_radius_in_l2_is_a_finite_number(epsilons):
    with pytest.raises(InputError, match="--epsilons"):
        EvaluateConfig(attacks="pgd:norm=l2", epsilons=epsilons)


@pytest.mark.parametrize("radii", ["1e308", "linf:1e308", "inf"])
def test_a_certified_radius_is_a_finite_number(radii):
    with pytest.raises(InputError, match="certified.radii"):
        EvaluateConfig(certified_radii=radii)


def test_a_checklist_needs_a_radius_above_zero():
    with pytest.raises(InputError, match="epsilon above 0"):
        EvaluateConfig(epsilons="0", checklist=True)
    EvaluateConfig(epsilons="0,0.1", checklist=True)
    EvaluateConfig(epsilons="0")


def test_what_a_report_directory_belongs_to_does_not_name_attacks():
    config = EvaluateConfig(num_examples=7, seed=3)
    expected = {"split": "test", "num_examples": 7, "seed": 3, "eot_samples": 50}
    assert identity(config) == expected | {"average_draws": 1, "attack_precision": "own", "shard": ""}
    other = EvaluateConfig(num_examples=7, seed=3, attacks="cw", epsilons="0.2", batch_size=9, checklist=True)
    assert identity(other) == identity(config)


@pytest.mark.parametrize("dataset", ["", "Nonsense!", "../mnist", "a b"])
def test_a_dataset_that_is_no_name_is_an_input_error(dataset, tmp_path):
    with pytest.raises(InputError, match="--dataset"):
        check_dataset_present(DataConfig(dataset=dataset, tfds_data_dir=str(tmp_path)))


def test_an_absent_dataset_is_an_input_error_that_says_how_to_get_it(tmp_path):
    with pytest.raises(InputError, match="mnist.*--tfds_data_dir.*--download"):
        check_dataset_present(DataConfig(dataset="mnist", tfds_data_dir=str(tmp_path)))
    with pytest.raises(InputError, match="absent"):
        check_dataset_present(DataConfig(dataset=f"folder:{tmp_path}/absent"))
    check_dataset_present(DataConfig(dataset="digits"))
    check_dataset_present(DataConfig(dataset=f"folder:{tmp_path}"))
    (tmp_path / "mnist").mkdir()
    check_dataset_present(DataConfig(dataset="mnist", tfds_data_dir=str(tmp_path), download=True))


def test_configurations_are_parsed_without_tensorflow(root):
    script = """
import sys
import wca_tf.runs.config, wca_tf.cli.train, wca_tf.cli.evaluate
from wca_tf.cli.flags import config_from_flags, define_flags
define_flags(wca_tf.runs.config.TrainConfig)
wca_tf.cli.train.flags.FLAGS(["train", "--epochs=7", "--backbone=resnet18"])
assert config_from_flags(wca_tf.runs.config.TrainConfig).epochs == 7
wca_tf.evaluation.config.EvaluateConfig(attacks="pgd:steps=3,z_margin", epsilons="8/255")
heavy = {"tensorflow", "keras", "numpy", "scipy", "sklearn", "tensorflow_datasets"} & set(sys.modules)
loaded = [name for name in heavy if type(sys.modules[name]).__name__ != "_LazyModule"]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
