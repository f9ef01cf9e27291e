"""Predict with a saved model of federated_logistic_regression.py: a job of its own, without patients or ledger.

    python examples/federated_prediction.py --model federated-results/model.npz --test patients.csv

With --sample, the examples' test patients are first written to that file.

The test file has a header with the model's features, maybe a column `id`, which is repeated in the predictions, and
maybe a column `y` with the truth, by which they are judged. A model that was trained with differential privacy may be
used as often as one likes: predictions from it are post-processing, and cost nothing. Test patients are not protected:
who sees their predictions sees something of them.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
from federated_model import Configuration, Floats, Model, records
from sklearn.metrics import accuracy_score, roc_auc_score

TESTERS = 3
"""Number of the share of patients that nobody trains with."""


def read(file: Path, model: Model) -> tuple[list[str], Floats, Floats | None]:
    """Read ids, (n, n_features) features and, if there are any, (n,) labels.

    Raises:
        ValueError: a column is missing, or a cell is no number.
    """
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    if not rows:
        raise ValueError(f"{file} has no patients.")
    missing = [name for name in model.feature_names if name not in rows[0]]
    if missing:
        raise ValueError(f"{file} lacks the columns {', '.join(missing)}.")
    columns = [*model.feature_names, *(["y"] if "y" in rows[0] else [])]
    cells = np.empty((len(rows), len(columns)))
    for number, row in enumerate(rows):
        for column, name in enumerate(columns):
            try:
                cells[number, column] = float(row[name])
            except (TypeError, ValueError):
                raise ValueError(f"{file}, line {number + 2}: {name} is {row[name]!r}, and no number.") from None
    ids = [row.get("id") or str(number) for number, row in enumerate(rows)]
    return ids, cells[:, : len(model.feature_names)], cells[:, -1] if "y" in rows[0] else None


def write_sample(file: Path, model: Model) -> None:
    """Write the test patients of the examples, with ids."""
    patients = records(Configuration(feature_names=model.feature_names))[0].share(TESTERS)
    with file.open("w", newline="") as text:
        rows = csv.writer(text)
        rows.writerow(["id", *model.feature_names, "y"])
        for number, (features, label) in enumerate(zip(patients.features, patients.labels, strict=True)):
            rows.writerow([f"patient-{number}", *features.tolist(), int(label)])


def main() -> None:
    """Predict, and judge if the truth is known."""
    options = argparse.ArgumentParser(description="Predict with a model of the federated logistic regression.")
    options.add_argument("--model", type=Path, required=True, help="model.npz of the training")
    options.add_argument("--test", type=Path, required=True, help="CSV file of patients; see --sample")
    options.add_argument("--out", type=Path, default=Path("predictions.csv"), help="CSV file to write (%(default)s)")
    options.add_argument("--sample", action="store_true", help="write the examples' test patients to --test first")
    asked = options.parse_args()
    try:
        model = Model.load(asked.model)
        if asked.sample:
            write_sample(asked.test, model)
        ids, features, labels = read(asked.test, model)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    chances = model.probabilities(features)
    with asked.out.open("w", newline="") as text:
        rows = csv.writer(text)
        rows.writerow(["id", "probability", "prediction"])
        rows.writerows(zip(ids, chances.round(6), (chances > 0.5).astype(int), strict=True))  # noqa: PLR2004
    print(f"{len(ids)} predictions written to {asked.out}")
    if labels is not None:
        right = accuracy_score(labels, chances > 0.5)  # noqa: PLR2004 - the likelier class
        print(f"accuracy {right:.3f}, AUC {roc_auc_score(labels, chances):.3f}")


if __name__ == "__main__":
    main()
