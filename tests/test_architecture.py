"""Data flow one way: which part of the package may know which."""

import ast

import pytest

# A part -> what nothing in it imports.
DEFENCES = ["wca_tf.defences.none", "wca_tf.defences.wca", "wca_tf.defences.wca_official"]
MUST_NOT_KNOW = {
    "wca_tf/attacks": [
        "wca_tf.defences",
        "wca_tf.model_dir",
        "wca_tf.training",
        "wca_tf.evaluation",
        "wca_tf.experiments",
    ],
    "wca_tf/config.py": [*DEFENCES, "wca_tf.experiments", "wca_tf.nets", "tensorflow", "keras"],
    "wca_tf/presence.py": ["tensorflow", "keras", "numpy"],
    "wca_tf/distribution/cluster.py": ["tensorflow", "keras", "numpy"],
    "wca_tf/distribution": DEFENCES,
    "wca_tf/data": ["wca_tf.defences", "wca_tf.nets", "wca_tf.attacks", "wca_tf.evaluation"],
    "wca_tf/nets": ["wca_tf.defences", "wca_tf.attacks", "wca_tf.training", "wca_tf.evaluation", "wca_tf.backbones"],
    "wca_tf/backbones": ["wca_tf.defences", "wca_tf.nets"],
    "wca_tf/defences": ["wca_tf.training", "wca_tf.evaluation.runner", "wca_tf.experiments"],
    "wca_tf/training.py": [*DEFENCES, "wca_tf.evaluation", "wca_tf.experiments"],
    "wca_tf/model_dir.py": DEFENCES,
    "wca_tf/adversarial.py": DEFENCES,
    "wca_tf/evaluation": [*DEFENCES, "wca_tf.experiments", "wca_tf.training", "wca_tf.serving"],
    "wca_tf/evaluation/report": [
        "wca_tf.evaluation.runner",
        "wca_tf.evaluation.measures",
        "wca_tf.evaluation.attacking",
    ],
    "wca_tf/serving": [*DEFENCES, "wca_tf.evaluation", "wca_tf.experiments"],
    "wca_tf/cli": DEFENCES,
    "wca_tf/defences/wca/covariance.py": ["wca_tf"],
    "wca_tf/alignment.py": ["wca_tf"],
    "wca_tf/orthant.py": ["wca_tf"],
}
# What is imported in a function, when it is needed.
LAZY = {("wca_tf/attacks/attack.py", "wca_tf.attack_model")}


def imports(path):
    """Every module that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(root, part):
    path = root / part
    return [path] if path.suffix else sorted(path.rglob("*.py"))


@pytest.mark.parametrize("part", MUST_NOT_KNOW)
def test_a_part_does_not_know_what_comes_after_it(root, part):
    for path in files_of(root, part):
        for module in imports(path):
            known = [name for name in MUST_NOT_KNOW[part] if module == name or module.startswith(f"{name}.")]
            assert not known, f"{path.relative_to(root)} imports {module}"


def test_attacks_meet_models_in_one_place_alone(root):
    for path in files_of(root, "wca_tf/attacks"):
        meeting = ("wca_tf.keras_target", "wca_tf.attack_model")
        found = {(str(path.relative_to(root)), module) for module in imports(path) if module in meeting}
        assert found <= LAZY


def test_the_commands_alone_know_absl(root):
    for path in files_of(root, "wca_tf"):
        if "cli" not in path.parts:
            assert not [module for module in imports(path) if module.split(".")[0] == "absl"], path
