"""From images to a served net that has been judged: digits, two short trainings, two attacks, an export.

    python examples/train_attack_export.py [DIRECTORY]

So few images and epochs say little of the defence; docs/tutorial.md says which numbers of a longer run to quote.
"""

import sys
from pathlib import Path

import wca_tf

directory = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/example")
evaluation = wca_tf.EvaluateConfig(attacks="pgd,z_margin", epsilons="0.1", num_examples=10)

for defence in ("none", "wca"):
    config = wca_tf.TrainConfig(defence=defence, max_train_examples=320, epochs=2, batch_size=32)
    wca_tf.train(config, directory / defence)
    results = wca_tf.evaluate_model_dir(evaluation, directory / defence, directory / defence / "report")
    left = {row["name"]: f"{row['expected_accuracy']['value']:.1%}" for row in results["attacks"]}
    worst = results["worst_case"][0]["expected_accuracy"]["value"]
    print(f"{defence}: clean {results['clean']['expected_accuracy']['value']:.1%}, {left}, worst case {worst:.1%}")

export = wca_tf.ExportConfig(model_dir=str(directory / "wca"), export_dir=str(directory / "served"))
print("exported:", wca_tf.export_model_dir(export))
