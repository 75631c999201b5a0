"""The journal: an Optuna study, in SQLite beside the results or wherever a URL says.
The only file that imports optuna.

A trial's parameters are drawn with a seed of its own, made from the sweep's seed and
the trial's number. So random and grid sweeps have the same trials on every engine, and
a trial that was interrupted gets the parameters it had.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tersify.lab.sweep.sweep_file import OBJECTIVES, Sweep
from tersify.lab.sweep.trial import Outcome
from tersify.lab.trainer.batches import seed_of

try:
    import optuna
except ImportError:
    raise ValueError(
        "a sweep needs Optuna, which is not installed; pip install 'tersify[sweep]'"
    ) from None

optuna.logging.set_verbosity(optuna.logging.ERROR)
_STATES = {
    "complete": optuna.trial.TrialState.COMPLETE,
    "pruned": optuna.trial.TrialState.PRUNED,
    "failed": optuna.trial.TrialState.FAIL,
}
_WORDS = {state: word for word, state in _STATES.items()} | {
    optuna.trial.TrialState.RUNNING: "running"
}
_FEWEST_FOR_IMPORTANCE = 8
# of the trials are the good ones; a tenth would be one or two of a small sweep
_GOOD_FRACTION = 0.25


class Study:
    """Draws trials, takes their figures, and knows what was interrupted."""

    def __init__(self, sweep: Sweep, home: Path, storage: str | None) -> None:
        self._sweep = sweep
        url = storage or f"sqlite:///{(home / 'study.db').resolve()}"
        where = f"the storage {storage}" if storage else f"{home / 'study.db'}"
        try:
            self._study = optuna.create_study(
                study_name=sweep.name
                if storage is None
                else f"{sweep.name}@{home.resolve()}",
                storage=url,
                directions=[OBJECTIVES[name] for name in sweep.objectives],
                pruner=_pruner(sweep),
                load_if_exists=True,
            )
        except Exception as error:
            # of the database's driver, its absence, or its answer
            why = " ".join(str(error).split("\n")[:1]) or type(error).__name__
            raise ValueError(
                f"{where} cannot be reached ({type(error).__name__}: {why}); give --storage a URL that Optuna "
                "understands, such as sqlite:///FILE or postgresql://USER@HOST/DATABASE"
            ) from None
        self._running: dict[int, optuna.Trial] = {}

    def interrupted(self) -> list[int]:
        """The trials that a dead process left half done, by number."""
        states = (optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.WAITING)
        return [
            trial.number
            for trial in self._study.get_trials(deepcopy=False, states=states)
        ]

    @property
    def count(self) -> int:
        return len(self._study.get_trials(deepcopy=False))

    def again(self, number: int) -> dict[str, Any]:
        """Go on with an interrupted trial; its parameters."""
        frozen = self._study.get_trials(deepcopy=False)[number]
        self._study.sampler = _sampler(self._sweep, number)
        self._running[number] = optuna.Trial(self._study, frozen._trial_id)
        return self._suggest(number)

    def ask(self) -> tuple[int, dict[str, Any]]:
        """A new trial: its number and its parameters."""
        self._study.sampler = _sampler(self._sweep, self.count)
        trial = self._study.ask()
        self._running[trial.number] = trial
        return trial.number, self._suggest(trial.number)

    def _suggest(self, number: int) -> dict[str, Any]:
        trial, drawn = self._running[number], {}
        for p in self._sweep.space:
            if p.kind == "categorical":
                drawn[p.field] = trial.suggest_categorical(p.field, p.choices)
            elif p.kind == "int":
                drawn[p.field] = trial.suggest_int(p.field, int(p.low), int(p.high))
            else:
                drawn[p.field] = trial.suggest_float(
                    p.field, p.low, p.high, log=p.kind == "log"
                )
        return drawn

    def judge(self, number: int, epoch: int, value: float) -> bool:
        """Whether the pruner would stop the trial here; what was told before an
        interruption is not told again.
        """
        trial = self._running[number]
        frozen = self._study.get_trials(deepcopy=False)[number]
        if epoch not in frozen.intermediate_values:
            trial.report(value, epoch)
        return trial.should_prune()

    def tell(self, number: int, outcome: Outcome) -> None:
        trial = self._running.pop(number)
        trial.set_user_attr("metrics", dict(outcome.metrics))
        if outcome.reason:
            trial.set_user_attr("reason", outcome.reason)
        if self._sweep.sampler == "grid":
            # At its last point a grid would stop Optuna's own loop, and raises where
            # there is none.
            self._study.sampler = optuna.samplers.RandomSampler(seed=0)
        values = list(outcome.values) if outcome.state == "complete" else None
        self._study.tell(trial, values, state=_STATES[outcome.state])

    def trials(self) -> list[dict[str, Any]]:
        """Every trial so far, plain values only."""
        return [
            {
                "number": trial.number,
                "state": _WORDS.get(trial.state, "waiting"),
                "params": dict(trial.params),
                "values": list(trial.values)
                if trial.state.name == "COMPLETE"
                else None,
                "metrics": trial.user_attrs.get("metrics", {}),
                "reason": trial.user_attrs.get("reason", ""),
                "epochs_told": len(trial.intermediate_values),
            }
            for trial in self._study.get_trials(deepcopy=False)
        ]

    def front(self) -> list[int]:
        """The complete trials that no other beats in every objective, by number."""
        return sorted(trial.number for trial in self._study.best_trials)

    def importance(self) -> dict[str, dict[str, float]]:
        """For each objective, how far each parameter tells its best quarter from the
        rest; empty for too few trials.
        """
        complete = self._study.get_trials(
            deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)
        )
        # PED-ANOVA cannot judge a parameter that had one value only.
        varied = [
            p.field
            for p in self._sweep.space
            if len({t.params[p.field] for t in complete}) > 1
        ]
        if len(complete) < _FEWEST_FOR_IMPORTANCE or not varied:
            return {}
        found: dict[str, dict[str, float]] = {}
        for index, name in enumerate(self._sweep.objectives):
            if len({t.values[index] for t in complete}) > 1:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found[name] = optuna.importance.get_param_importances(
                        self._study,
                        params=varied,
                        target=_loss(index, OBJECTIVES[name]),
                        evaluator=optuna.importance.PedAnovaImportanceEvaluator(
                            target_quantile=_GOOD_FRACTION
                        ),
                    )
        return found


def _loss(index: int, direction: str) -> Any:
    """Small where the trial is good, which is what the evaluator expects."""
    return lambda trial: (
        -trial.values[index] if direction == "maximize" else trial.values[index]
    )


def _sampler(sweep: Sweep, number: int) -> optuna.samplers.BaseSampler:
    # A seed for each trial, so that the order in which workers finish does not matter.
    own = seed_of(sweep.seed, number, "trial")
    if sweep.sampler == "grid":
        space: Mapping[str, Sequence[Any]] = {p.field: p.grid() for p in sweep.space}
        # it goes by the trial's number
        return optuna.samplers.GridSampler(space, seed=sweep.seed)
    if sweep.sampler == "random":
        return optuna.samplers.RandomSampler(seed=own)
    if sweep.sampler == "nsga2":
        return optuna.samplers.NSGAIISampler(
            seed=own, population_size=max(4, min(50, sweep.count // 4))
        )
    return optuna.samplers.TPESampler(seed=own)


def _pruner(sweep: Sweep) -> optuna.pruners.BasePruner:
    if sweep.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=4)
    if sweep.pruner == "hyperband":
        epochs = sweep.job({p.field: p.ends()[0] for p in sweep.space}).config.epochs
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=epochs)
    return optuna.pruners.NopPruner()
