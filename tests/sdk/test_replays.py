"""Steps that another process was admitted for are never released a second time."""

import httpx2
import pytest

from epsilon_ledger import LedgerClient, SequenceConflictError, StepsAlreadyTakenError, gaussian
from tests.sdk.fake_ledger import RUN_ID, FakeLedger, Fault, problem


def test_steps_that_another_process_took_are_not_ours(client: LedgerClient, ledger: FakeLedger) -> None:
    restarted, zombie = client.get_run(RUN_ID), client.get_run(RUN_ID)
    restarted.authorize(2)
    with pytest.raises(StepsAlreadyTakenError, match="Steps 0 to 1 of run_1") as caught:
        zombie.authorize(2)
    assert (caught.value.run, caught.value.first_step, caught.value.next_step) == (RUN_ID, 0, 2)
    assert zombie.next_step == 0
    for ask in (zombie.authorize, zombie.preview):
        with pytest.raises(StepsAlreadyTakenError):
            ask(2)
    assert client.get_run(RUN_ID).authorize(2).first_step == 2
    assert ledger.next_step == 4


def test_with_other_events_the_ledger_itself_says_no(client: LedgerClient) -> None:
    restarted, zombie = client.get_run(RUN_ID), client.get_run(RUN_ID)
    restarted.authorize()
    with pytest.raises(SequenceConflictError):
        zombie.authorize(event=gaussian(3.0))


@pytest.mark.parametrize(
    "fault", [httpx2.ConnectError("refused"), httpx2.ConnectTimeout("nobody"), problem(429, "slow")], ids=str
)
def test_a_try_that_never_arrived_does_not_make_them_ours(
    client: LedgerClient, ledger: FakeLedger, fault: httpx2.Response | Exception
) -> None:
    restarted, zombie = client.get_run(RUN_ID), client.get_run(RUN_ID)
    restarted.authorize()
    ledger.faults.append(Fault(instead=fault))
    with pytest.raises(StepsAlreadyTakenError):
        zombie.authorize()


def test_the_key_in_the_replay_tells_whose_they_are(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.tells_key = True
    restarted, zombie = client.get_run(RUN_ID), client.get_run(RUN_ID)
    restarted.authorize()
    # The zombie's first try may have arrived as far as it knows, but it did not.
    ledger.faults.append(Fault(instead=problem(503, "ledger_unavailable")))
    with pytest.raises(StepsAlreadyTakenError):
        zombie.authorize()
    ledger.faults.append(Fault(after=httpx2.ReadTimeout("no answer")))
    assert restarted.authorize().first_step == 1
