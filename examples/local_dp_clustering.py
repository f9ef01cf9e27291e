"""Local differential privacy: does a score of noisy inference results follow the training?

The ledger must be running (README.md, "By hand"), and matplotlib, PyYAML and scikit-learn must be installed. Then:

    EPSILON_LEDGER_URL=http://127.0.0.1:8000 EPSILON_LEDGER_API_KEY=... python examples/local_dp_clustering.py

A model is trained on public digits. After 1, 3, 5 and 10 rounds, a thousand devices classify a digit of their own and
send the softmax output with Laplace noise. The cloud scores the clusters of the reports, which should rise as the loss
falls. Each series of rounds is reserved before a device is asked; one beyond the limit does not happen.

local_dp_clustering.yaml is the configuration, local_dp_devices.py the devices.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
from common import budget
from local_dp_config import MAX_EPSILON, VACUOUS, Config, configuration
from local_dp_devices import (
    MAX_DEVICES,
    SENSITIVITIES,
    Content,
    Devices,
    Floats,
    Request,
    noise_of,
    softmax,
    with_one,
)
from local_dp_results import Floor, Series, plot, show
from sklearn.datasets import load_digits
from sklearn.metrics import calinski_harabasz_score, silhouette_score

from epsilon_ledger import BudgetExceededError, LedgerClient, Limit
from epsilon_ledger.mechanisms import Unmetered

DELTA = 1e-6
LEARNING_RATE = 0.1
BATCH_SIZE = 32
CONFIDENCE_EPSILON = 2.0
"""Of a report of one number, the output's largest entry, to compare with all ten at the same epsilon."""
FLOOR_DRAWS = 20
BOUNDS = (1e-5, 1e-2, 0.1, 0.5)

Weights = Mapping[int, tuple[Floats, float]]
"""The model, (65, 10), and its loss, by the number of rounds of training."""


def train(rounds: Sequence[int]) -> Weights:
    """Train a softmax regression on public digits, by passes of mini-batches.

    Nothing of a device goes into the model, so the training is not charged.
    """
    pixels, digits = load_digits(return_X_y=True)
    features, truth = with_one(pixels[MAX_DEVICES:]), np.eye(10)[digits[MAX_DEVICES:]]
    shuffle = np.random.default_rng(1)
    weights = np.zeros((features.shape[1], truth.shape[1]))
    found = {}
    for number in range(1, max(rounds) + 1):
        order = shuffle.permutation(len(features))
        for batch in np.array_split(order, len(order) // BATCH_SIZE):
            residuals = softmax(features[batch] @ weights) - truth[batch]
            weights -= LEARNING_RATE / len(batch) * features[batch].T @ residuals
        if number in rounds:
            loss = -np.mean(np.sum(np.log(softmax(features @ weights)) * truth, axis=1))
            found[number] = weights.copy(), float(loss)
    return found


def score(reports: Floats, eval_type: str) -> float:
    """Score (n, 10) reports as clusters by their largest entry, or average (n, 1) reports."""
    if reports.shape[1] == 1:
        return float(np.mean(reports))
    clusters = np.argmax(reports, axis=1)
    rated = silhouette_score if eval_type == "SILHOUETTE_SCORE" else calinski_harabasz_score
    return float(rated(reports, clusters))


def floor(config: Config) -> Floor:
    """Score reports that are noise alone. The scale of the noise does not matter: both scores ignore it."""
    nothing = np.zeros((config.devices, 10))
    noise, unmetered = noise_of(1.0), Unmetered("there is no data in these reports")
    drawn = [score(noise.release(nothing, run=unmetered), config.eval_type) for _ in range(FLOOR_DRAWS)]
    return Floor(float(np.mean(drawn)), min(drawn), max(drawn))


def without_noise(devices: Devices, config: Config, trained: Weights, content: Content) -> Series:
    """Collect what no cloud ever sees: reports without noise. It is possible because these digits are public."""
    found = [
        score(devices.collect(Request(f"{content} {number}", weights, content, None)), config.eval_type)
        for number, (weights, _) in trained.items()
    ]
    return Series(content, None, 0.0, [found])


def collect(  # noqa: PLR0917 - what a series needs
    ledger: LedgerClient,
    path: str,
    devices: Devices,
    config: Config,
    trained: Weights,
    content: Content,
    epsilon: float,
) -> Series:
    """Reserve a series of rounds, then ask the devices in each of them.

    Args:
        ledger: with a trainer's key.
        path: of the budget.
        devices: to ask.
        config: the configuration.
        trained: the models, by rounds.
        content: of the reports.
        epsilon: of one report.
    """
    noise = noise_of(epsilon, content)
    models = list(trained.values())
    steps = len(models) * config.repeats
    scores: list[float] = []
    refusal = None
    try:
        with ledger.create_run(
            f"{content}, epsilon {epsilon:g}",
            budget=path,
            neighboring_relation="replace_one",
            event=noise.event,
            # Half a series is worth nothing: all of it is reserved, or nothing is collected.
            reserve=[{"event": noise.event, "count": steps}],
        ) as run:
            for step in range(steps):
                run.authorize()
                weights, _ = models[step % len(models)]
                reports = devices.collect(Request(f"{run.id} {step}", weights, content, epsilon))
                if len(reports) < config.devices:
                    refusal = f"{config.devices - len(reports)} devices sent nothing: their own limits are reached"
                    break
                scores.append(score(reports, config.eval_type))
            run.commit(step + 1)
    except BudgetExceededError as error:
        refusal = str(error)
    if refusal is not None:
        return Series(content, epsilon, noise.scale, [], refusal)
    return Series(content, epsilon, noise.scale, np.reshape(scores, (config.repeats, len(models))).tolist())


def chargeable(config: Config) -> tuple[float, ...]:
    """Print a warning for each epsilon that protects nobody; return those that the ledger can charge."""
    if config.privacy_type == "NOT_ENCRYPT":
        print("NOT_ENCRYPT: no budget holds reports without noise. They are shown because these digits are public.")
        return ()
    for epsilon in config.epsilons:
        if epsilon > MAX_EPSILON:
            print(
                f"epsilon {epsilon:g} is not collected: it is no protection, and the ledger charges at most "
                f"{MAX_EPSILON:g} for a report. Noise of scale 1/{epsilon:g} would even cost {2 * epsilon:g}, "
                "because two outputs are up to 2 apart."
            )
        elif epsilon > VACUOUS:
            print(f"epsilon {epsilon:g} protects nobody: a report may be e^{epsilon:g} times as likely for one digit.")
    return tuple(epsilon for epsilon in sorted(config.epsilons) if epsilon <= MAX_EPSILON)


def calibrate(ledger: LedgerClient) -> None:
    """Print the cost of keeping 90 % of the noise below a bound."""
    print("\nWhich epsilon keeps 90 % of the noise in a coordinate below m?")
    print(f"{'m':>8} {'scale b':>12} {'epsilon':>12}")
    for bound in BOUNDS:
        noise = ledger.compute_laplace_cost(bound=bound, probability=0.9, l1_sensitivity=SENSITIVITIES["output"])
        print(f"{bound:8g} {noise.scale:12.4g} {noise.epsilon:12.6g}{'  protects nobody' * (noise.epsilon > VACUOUS)}")


def main() -> None:
    """Train, collect and score."""
    config = configuration()
    epsilons = chargeable(config)
    trained = train(config.rounds)
    wanted: list[tuple[Content, float]] = [("output", epsilon) for epsilon in epsilons]
    if wanted:
        wanted.insert(0, ("confidence", CONFIDENCE_EPSILON))
    steps = len(trained) * config.repeats
    with Devices(config.devices, config.processes, config.limit) as devices, LedgerClient() as ledger:
        path = budget(
            ledger,
            config.budget,
            "digit-devices",
            privacy_unit="client device",
            neighboring_relation="replace_one",
            size=config.devices,
            limit=Limit(config.limit, DELTA),
            planned=[(noise_of(epsilon, content).event, steps) for content, epsilon in wanted] or None,
        )
        calibrate(ledger)
        print(f"\nCollecting {config.repeats} series of {len(trained)} rounds from {config.devices} devices:")
        series = [without_noise(devices, config, trained, content) for content in ("output", "confidence")]
        for content, epsilon in wanted:
            found = collect(ledger, path, devices, config, trained, content, epsilon)
            series.append(found)
            print(f"  {found.name}: {found.refusal or 'collected'}", flush=True)
        spent = ledger.get_budget(path)
    losses = {number: loss for number, (_, loss) in trained.items()}
    bottom = floor(config)
    show(series, losses, bottom, config.eval_type)
    print(f"\nSpent by each device: epsilon {spent.epsilon:.1f} of {spent.limit.epsilon:g} at delta {DELTA:g}.")
    config.out.mkdir(parents=True, exist_ok=True)
    plot(series, losses, bottom, config.eval_type, config.out / "scores.png")
    facts = {
        "budget": spent.id,
        "spent": spent.epsilon,
        "losses": losses,
        "floor": asdict(bottom),
        "series": [asdict(each) for each in series],
    }
    (config.out / "scores.json").write_text(json.dumps(facts, indent=2))
    print(f"Written: {config.out / 'scores.png'} and {config.out / 'scores.json'}")


if __name__ == "__main__":
    main()
