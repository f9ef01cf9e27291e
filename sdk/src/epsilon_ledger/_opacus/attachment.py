"""What `attach` has to know of an optimizer: the source of its samples, who clips, and its earlier steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer
from torch.utils.data import DataLoader

from epsilon_ledger import (
    Event,
    EventCount,
    Run,
    Trial,
    adaptive_clipping,
    gaussian,
    poisson_sampled,
)
from epsilon_ledger._opacus.accountant import LedgerAccountant
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.guard import present_guard
from epsilon_ledger._opacus.hook import accountant_of, uncharged_steps
from epsilon_ledger._opacus.loaders import observe, sampler_of
from epsilon_ledger._opacus.public_size import public_size_of
from epsilon_ledger._opacus.ranks import computed_by_rank_0, workers
from epsilon_ledger._opacus.samples import SampleSource, drawn_probability
from epsilon_ledger._opacus.steps import GHOST, check_unsampled
from epsilon_ledger._run.batch_sources import reason_against_dataset
from epsilon_ledger._wire.coercion import one_of, real, whole


@dataclass(frozen=True)
class AttachOptions:
    """Arguments of `attach` about the steps."""

    data_loader: DataLoader | None = None
    sampling_probability: float | None = None
    event: Callable[[DPOptimizer], Event] | None = None
    module: Any = None
    releases_per_sample: int = 1
    earlier_steps: Literal["refuse", "report", "charged"] = "refuse"
    epochs: int | None = None
    public_size: int | None = None
    original: DataLoader | None = None
    """What `make_private` was given, if the engine is attached."""

    def check(self) -> None:
        """Check the types and bounds of what the user gave.

        Raises:
            TypeError: an argument has another type.
            ValueError: an argument is out of its bounds.
        """
        loader = self.data_loader
        if self.event is None and loader is not None and not isinstance(loader, DataLoader):
            raise TypeError(f"data_loader must be the DataLoader that make_private returned, not {loader!r}.")
        if self.event is not None and not callable(self.event):
            raise TypeError(
                f"event must be a function from the optimizer to the event of its step, not {self.event!r}."
            )
        if self.sampling_probability is not None:
            real("sampling_probability", self.sampling_probability, 0.0, 1.0, above=True)
        for name in ("releases_per_sample", "epochs", "public_size"):
            number = getattr(self, name)
            if number is not None:
                whole(name, number)
        one_of("earlier_steps", self.earlier_steps, ("refuse", "report", "charged"))


def find_public_size(optimizer: DPOptimizer, run: Run | Trial | None, options: AttachOptions) -> int | None:
    """Find the public size on rank 0, for all ranks; None: the number of records is public, or its effect unknown."""
    loader = options.data_loader
    if loader is None or options.event is not None:
        return None
    if options.public_size is not None:
        return options.public_size

    def find() -> float:
        assert run is not None, "rank 0 has the run"
        return float(public_size_of(run, loader.dataset, None) or 0)

    return int(find() if workers(optimizer) == 1 else computed_by_rank_0(find)) or None


def find_source(optimizer: DPOptimizer, run: Run | Trial | None, options: AttachOptions) -> SampleSource | None:
    """Find the source of the optimizer's samples: the given loader, or the one attached earlier."""
    loader, stated = options.data_loader, options.sampling_probability
    if loader is None:
        guard = present_guard(optimizer)
        source = None if guard is None else guard.source
    else:
        if stated == 1.0 and run is not None:
            check_unsampled(loader, run.state.neighboring_relation)
        source = _observed(loader, stated)
    if source is None and stated != 1.0:
        raise ValueError(
            "How are records drawn? Give data_loader=..., the one that make_private returned, or attach the privacy "
            "engine before make_private: each step is held to a draw of its own."
        )
    if source is not None and not source.poisson:
        _check_stated(source.kind, stated)
    return source


def _check_stated(kind: type, stated: float | None) -> None:
    """Require that it is known, or stated by who may know it, how a sampler that is none of Opacus draws."""
    if stated is None:
        raise UnsupportedTrainingError(
            f"This loader's {kind.__name__} does not draw Poisson samples, so its batch size over n is no sampling "
            f"probability, and the usual accounting does not hold. Let make_private do it (poisson_sampling=True, its "
            f"default), and give its data loader. Or choose the charge: with sampling_probability=1.0 every step is "
            f"charged as if it saw all the data; event=... takes a function from the optimizer to the event of the "
            f"step that it is about to take."
        )
    if stated < 1.0 and kind.__module__.partition(".")[0] == "torch":
        raise UnsupportedTrainingError(
            f"sampling_probability={stated:g} is stated, but torch's {kind.__name__} makes batches of one size, which "
            f"are no Poisson samples. Let make_private draw them (poisson_sampling=True, its default), or state 1.0: "
            f"then every step is charged as if it saw all the data."
        )


def _observed(loader: DataLoader, stated: float | None) -> SampleSource | None:
    reason = reason_against_dataset(loader.dataset)
    if reason is not None:
        raise UnsupportedTrainingError(
            f"A record may be in a batch twice, which moves the sum by two clipping norms, and one is charged: "
            f"{reason}."
        )
    sampler = sampler_of(loader)
    source = observe(loader)
    if source is not None:
        source.random_if_empty = bool(getattr(loader.collate_fn, "rand_on_empty", False))
    if source is not None and source.poisson:
        rate = drawn_probability(sampler)
        if stated is not None and stated < rate:
            raise UnsupportedTrainingError(
                f"sampling_probability={stated:g} is stated, but the loader's sampler draws with {rate:g}. Leave "
                f"sampling_probability out: it is read from the sampler at each step."
            )
    elif source is None:  # a list of batches, or none
        _check_stated(type(sampler), stated)
    return source


def find_clipping(optimizer: DPOptimizer, options: AttachOptions) -> Any:  # noqa: ANN401 - a module, or Opacus' hooks of one
    """Find the module that clips instead of the optimizer."""
    if type(optimizer) not in GHOST:
        return None
    guard = present_guard(optimizer)
    module = options.module if options.module is not None else guard and guard.clipping and guard.clipping.module
    if module is None:
        raise UnsupportedTrainingError(
            "With ghost clipping it is the module that clips, so its norm must be known. Give module=..., what "
            "make_private returned first, or attach the privacy engine before make_private."
        )
    return module


def settle_earlier_steps(optimizer: DPOptimizer, run: Run | Trial | None, options: AttachOptions) -> None:
    """Handle steps from before the attachment that Opacus' accountant has counted."""
    hook = optimizer.step_hook
    accountant = accountant_of(hook)
    if run is None or accountant is None or isinstance(accountant, LedgerAccountant):
        return
    steps = uncharged_steps(accountant, run)
    if not steps or options.earlier_steps == "charged":
        return
    whole = sum(int(count) for *_, count in accountant.history)
    if options.earlier_steps == "report" and steps == whole and not isinstance(run, Trial):
        of = adaptive_clipping if type(optimizer) is AdaClipDPOptimizer else gaussian
        run.report(
            events=[
                EventCount(event=poisson_sampled(rate, of(noise)), count=int(count))
                for noise, rate, count in accountant.history
            ]
        )
        return
    raise UnsupportedTrainingError(
        f"Opacus' accountant shows {whole} steps, and {steps} of them were not charged: they were taken before "
        f"this attach. Attach before the first step. If what Opacus shows is what was done, earlier_steps='report' "
        f"reports it to a Run that has no other steps of this training; else report it with run.report(events=...). "
        f"earlier_steps='charged' takes them for charged, by run.report or to another run."
    )
