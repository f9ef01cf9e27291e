"""Steps that fit by counting: decided on the rows that the last group left, and charged to them in place."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, RepeatAndSelect
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.admission.admission import Admission, governing_of
from app.ledger.admission.counted_accounts import CountedAccount, CountMark, admit_by_counting
from app.ledger.errors import PermissionDeniedError
from app.ledger.filter.limits import Limit
from app.ledger.runs.decisions import Decision, DecisionEntry, Reading, entry_hash, entry_of
from app.ledger.runs.deviations import merge_deviations
from app.ledger.runs.reservation_use import used_further
from app.ledger.runs.reservations import Reservation, has_lapsed
from app.ledger.runs.run import Run, RunStatus, find_deviations
from app.ledger.settings.windows import ALWAYS, Window
from app.ledger.step_events import PricedStep, StepEvent
from app.persistence.repositories import balances, decisions, reservations, runs
from app.persistence.repositories.dp_events import CostTable
from app.service.auth.request_context import RequestContext
from app.service.charging.decision import request_fingerprint
from app.service.charging.ledger_state import CachedRun, CountedRequest, CurrentRows, Key, LedgerState
from app.service.charging.requests import Decided, Mode, StepCommand, StepRequest, StepResult, new_decision
from app.service.charging.step_epsilons import MOST_COMPOSED, STEP_EPSILONS, Workload


@dataclass(slots=True)
class _Counted:
    """A run of the group: as it is stored, and now, and the accounts of its path by key.

    Args:
        windows: of the accounts that are not always open.
        governing: the limit at whose delta the run's epsilon is read.
        asked: the request that was counted last.
        taken: steps that the group has taken out of the run's reservation, by place of their event.
    """

    stored: CachedRun
    path: dict[Key, CountedAccount]
    windows: Sequence[Window]
    governing: Limit
    run: Run
    asked: CountedRequest | None
    taken: dict[int, int] = field(default_factory=dict)

    @property
    def reservation(self) -> Reservation | None:
        """The run's reservation now."""
        reservation = self.stored.reservation
        return reservation if reservation is None or not self.taken else used_further(reservation, self.taken)

    def place_of(self, event: DpEvent) -> int | None:
        """Find an event in the run's reservation."""
        items = () if self.stored.reservation is None else self.stored.reservation.items
        return next((place for place, item in enumerate(items) if item.event is event or item.event == event), None)


class CountedSteps:
    """The steps of a group that are charged in place.

    Until the caller publishes them the accounts are ahead of the database: whatever fails, it must undo them.
    """

    def __init__(self, state: LedgerState, rows: CurrentRows) -> None:
        self._state = state
        self._rows = rows
        self._runs: dict[Key, _Counted] = {}
        self._left: set[Key] = set()
        """Runs whose next steps are decided the usual way, after these."""
        self._charged: dict[Key, tuple[CountedAccount, CountMark]] = {}
        """The charged accounts, and what they are in the database."""
        self._advanced: list[tuple[Key, _Counted]] = []
        self.decided: list[tuple[DecisionEntry, bytes]] = []
        """Decisions to write, with their hashes."""

    @property
    def above(self) -> list[tuple[str, int]]:
        """Id and revision of the limit that the accounts above those charged by steps of reservations must have."""
        runs = [each for _, each in self._advanced if each.taken]
        accounts = {key: counted for each in runs for key, counted in each.path.items() if key not in self._charged}
        return [(key[1], counted.record.account.limit_revision) for key, counted in accounts.items()]

    @property
    def seen(self) -> list[tuple[str, int, datetime]]:
        """Id, version and time of change that the charged accounts must have in the database."""
        return [(key[1], mark.version, mark.updated_at) for key, (_, mark) in self._charged.items()]

    @property
    def keys(self) -> list[str]:
        """The idempotency keys of the decisions."""
        return [entry.idempotency_key for entry, _ in self.decided if entry.idempotency_key is not None]

    def charge_all(
        self, commands: Sequence[StepCommand], used_keys: Collection[str] = ()
    ) -> dict[int, StepResult | PermissionDeniedError]:
        """Charge what can be counted.

        Args:
            commands: of the group, in order.
            used_keys: those of their idempotency keys that have an answer.

        Returns:
            Results by place in the group, without those of the commands that are left.
        """
        found: dict[int, StepResult | PermissionDeniedError] = {}
        taken = set(used_keys)
        for place, command in enumerate(commands):
            run, key = (command.context.organisation_id, command.request.run_id), command.request.idempotency_key
            decision = None
            if run not in self._left and key not in taken:
                try:
                    decision = self._charge(run, command)
                except PermissionDeniedError as error:
                    found[place] = error
                    continue
            if decision is None:
                self._left.add(run)
                continue
            found[place] = StepResult(decision, replayed=False)
            if key is not None:
                taken.add(key)
        return found

    def save(self, tx: Connection) -> None:
        """Write the decisions, and the states and balances that they lead to."""
        decisions.add_all(tx, self.decided)
        runs.advance_all(tx, [(owner, each.stored.run, each.run) for (owner, _), each in self._advanced])
        taken = [
            (owner, reservation, each.taken)
            for (owner, _), each in self._advanced
            if each.taken and (reservation := each.reservation)
        ]
        if taken:
            reservations.save_items(tx, taken)
        balances.save(tx, [(owner, counted) for (owner, _), (counted, _) in self._charged.items()])

    def publish(self) -> None:
        """Let the next decisions see the runs as they are now."""
        advanced = {
            key: CachedRun(each.stored.path, each.run, each.reservation, each.asked) for key, each in self._advanced
        }
        self._rows.runs |= advanced
        self._state.runs.put_many(advanced.items())

    def undo(self) -> None:
        """Take back what was charged, which may not be stored; whatever cannot be taken back is forgotten."""
        self._state.forget([key for key, (counted, mark) in self._charged.items() if not counted.undo(mark)])
        self._state.runs.forget_many(self._runs)

    def _charge(self, key: Key, command: StepCommand) -> Decision | None:
        """Charge the repetitions of one event to its run's accounts; None: it cannot be decided by counting."""
        known = self._runs.get(key) or self._load(key)
        if known is None:
            return None
        command.context.require_scope(known.stored.path)
        asked, run, now = self._asked(key[0], known, command), known.run, command.context.now
        if asked is None or not run.next_step:  # the rule finds the warnings of a first charge
            return None
        step, own, reservation = asked.priced.step, known.path[key], known.stored.reservation
        outcome, place = self._admit(known, command, asked.priced)
        if outcome is None or outcome.steps_remaining <= 0 or _deviates(run, own.record, step, now):
            return None  # the last step raises an alert, or is the last one of the reservation
        reading = _read(known, own, step.count, outcome.used)
        if reading is None:
            return None
        for at, counted in known.path.items() if place is None else [(key, own)]:
            if at not in self._charged:
                self._charged[at] = counted, counted.mark
            counted.charge(step.count, now)
        if place is not None:
            known.taken[place] = known.taken.get(place, 0) + step.count
        version = next(iter(known.path.values())).version
        decision = new_decision(
            command,
            run,
            (step,),
            asked.fingerprint,
            Decided(outcome, reading),
            version,
            reservation_id=None if reservation is None else reservation.id,
        )
        entry = entry_of(key[0], decision)
        head = entry_hash(run.chain_head, entry)
        if run is known.stored.run:
            self._advanced.append((key, known))
        known.run, known.asked = run.advanced(decision.next_step, head, now, entry.actor), asked
        self.decided.append((entry, head))
        return decision

    def _admit(self, known: _Counted, command: StepCommand, priced: PricedStep) -> tuple[Admission | None, int | None]:
        """Admit repetitions to the accounts of a path or, with the place of their event, to the run's reservation."""
        path, reservation = tuple(known.path.values()), known.stored.reservation
        if reservation is None:
            return admit_by_counting(path, priced), None
        place = known.place_of(priced.step.event)
        if place is None or has_lapsed(reservation, command.context.lapsed_by):
            return None, None
        left = reservation.items[place].left - known.taken.get(place, 0) - priced.step.count
        return (admit_by_counting(path, priced, left) if left > 0 else None), place

    def _load(self, key: Key) -> _Counted | None:
        """Get a run and the accounts of its path, if none of them is shared out, parallel or in quarantine."""
        cached = self._rows.runs.get(key)
        if cached is None:
            return None
        path: dict[Key, CountedAccount] = {}
        windows, accounts = [], []
        for each in cached.path:  # hot path: of many runs, each step is the first one of its group
            at = key[0], each
            counted = path[at] = self._rows.accounts[at]
            account = counted.record.account
            shared = account.allocation is not None or account.partitions_per_unit is not None
            if shared or counted.record.quarantine is not None:
                return None
            if account.window is not ALWAYS:
                windows.append(account.window)
            accounts.append(account)
        governing = governing_of(accounts).limit
        assert governing is not None, "it governs"
        known = _Counted(cached, path, windows, governing, cached.run, cached.asked)
        self._runs[key] = known
        return known

    def _asked(self, owner: str, known: _Counted, command: StepCommand) -> CountedRequest | None:
        """Get what a command asks for, if counting may decide it."""
        run, request, context = known.run, command.request, command.context
        if len(request.items) > 1 or not _is_next(request, run) or not _follows(context, run):
            return None
        if known.windows and not all(window.holds(context.now) for window in known.windows):
            return None
        [(sent, count)] = request.items
        event, last = sent or run.event, known.asked
        if last is not None and last.repeats(event, count, request.on_exceed):
            return last
        curve = None if event is None else self._cost(owner, known, event)
        if event is None or curve is None:
            return None
        step = StepEvent(event, count)
        return CountedRequest(PricedStep(step, curve), request.on_exceed, request_fingerprint(request, (step,)))

    def _cost(self, owner: str, known: _Counted, event: DpEvent) -> RdpCurve | None:
        """Get the cost of an event, if it is known to be stored."""
        account = known.path[owner, known.run.account_id].record.account
        if (owner, (account.relation, account.grid_version), event) not in self._state.stored_costs:
            return None
        return self._state.costs.cached(CostTable.of(owner, account), [event]).get(event)


def _read(known: _Counted, own: CountedAccount, number: int, used: float) -> Reading | None:
    """Read a run's numbers after a further number of repetitions that fit; None: its epsilon is not known yet."""
    limit, epsilon = known.governing, own.epsilon(number)
    if epsilon is None:
        _look_ahead(own, number, limit.shown_delta)
        epsilon = own.epsilon(number)
        if epsilon is None:
            return None
    return Reading(min(epsilon, limit.epsilon), limit, used)


def _look_ahead(own: CountedAccount, number: int, delta: float) -> None:
    """Look up the epsilons that a run may have after a further number of repetitions and after the next ones."""
    counts, account = own.counts_after(number), own.record.account
    if counts is None or len(counts) > MOST_COMPOSED:
        own.choose_order(number, delta)
        return
    found = STEP_EPSILONS.find(Workload.of(account.relation, delta, account.id, counts), counts, own.event)
    if found is not None:
        own.look_ahead(found)
    elif STEP_EPSILONS.is_busy:
        own.choose_order(number, delta)


def _follows(context: RequestContext, run: Run) -> bool:
    """Check that a decision needs no new range: its author is that of the last one, and its time no earlier."""
    last = run.last_decided_at  # a clock may be set back
    return last is not None and context.now >= last and context.principal.actor == run.last_actor


def _deviates(run: Run, own: AccountRecord, step: StepEvent, now: datetime) -> bool:
    """Check whether a step deviates from the run's declaration as none before."""
    declared = run.declaration
    if step.event is run.event and declared.expected_steps is None and declared.declared_steps_per_hour is None:
        return False
    found = find_deviations(run, own.account.planned, (step,), (now - own.created_at).total_seconds() / 3600)
    return bool(found) and merge_deviations(run.deviations, found) is not run.deviations


def _is_next(request: StepRequest, run: Run) -> bool:
    """Check that a request is for the next steps of an active run that pays by itself."""
    return (
        request.mode is Mode.AUTHORIZE
        and request.attempt == run.attempt
        and request.first_step in {None, run.next_step}
        and run.status is RunStatus.ACTIVE
        and not isinstance(run.event, RepeatAndSelect)
    )
