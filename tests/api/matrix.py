"""Who may do what: every operation, for each role, in one's own organisation and as another tenant.

Written by hand, once. An operation that is not here fails, and so does one that does not behave as it is written.
"""

EVERYONE = ["viewer", "trainer", "planner", "budget_admin", "privacy_officer", "auditor", "admin"]
TRAINING = ["trainer", "admin"]
RUNS = ["trainer", "budget_admin", "privacy_officer", "admin"]
MANAGERS = ["budget_admin", "privacy_officer", "admin"]
PLANNING = ["planner", "budget_admin", "privacy_officer", "admin"]
OFFICE = ["privacy_officer", "admin"]
PROOF = ["privacy_officer", "auditor", "admin"]

HIDDEN = "hidden"
"""It names what belongs to another tenant: 404, and in no way other than for what there is not."""
OWN = "own"
"""It is about the asker's own organisation: nothing of another tenant is told or touched."""
SAME = "same"
"""It is about nobody: all tenants are told the same."""

RULES: list[tuple[list[str], str, str]] = [
    (MANAGERS, OWN, "createPopulation"),
    (MANAGERS, HIDDEN, "updatePopulation createBudget updateBudget archiveAccount unarchiveAccount"),
    (MANAGERS, HIDDEN, "createBlocks replaceBlockSchedule removeBlockSchedule replaceAllocation prioritizeReservation"),
    (RUNS, HIDDEN, "createExperiment createRun updateRun completeRun pauseRun resumeRun abortRun"),
    (RUNS, HIDDEN, "cancelReservation requestLimit"),
    (TRAINING, HIDDEN, "chargeExperiment authorizeSteps createAttempt"),
    (TRAINING, HIDDEN, "createReservation commitReservation voidReservation claimReservation renewReservation"),
    (PLANNING, HIDDEN, "changeAccountLimit"),
    (EVERYONE, OWN, "listPopulations listBudgets listRuns listExperiments listDecisions listProposals listAlerts"),
    (EVERYONE, OWN, "getOrganisationPolicy exportRuns exportDecisions"),
    (EVERYONE, HIDDEN, "getPopulation getBudget getExperiment getRun getReservation getProposal getQueue previewWait"),
    (EVERYONE, HIDDEN, "getAccountLimit getAccountPolicy getAllocation getBlockSchedule getAlertSettings getForecast"),
    (EVERYONE, HIDDEN, "getLimitEquivalents"),
    (EVERYONE, HIDDEN, "getRunHistory getRunHistorySvg exportRunHistory"),
    (EVERYONE, HIDDEN, "getAccountHistory getAccountHistorySvg exportAccountHistory"),
    (EVERYONE, HIDDEN, "getRunStatement getRunStatementHtml getPopulationStatement getPopulationStatementHtml"),
    (EVERYONE, HIDDEN, "getRunRegistryEntry getPopulationRegistryEntry"),
    (EVERYONE, SAME, "computeEpsilon computeDelta computeEpsilonTrajectory computeLaplaceCost"),
    (EVERYONE, SAME, "findNoiseMultiplier findMaxSteps findSamplingProbability getSigningKey"),
    (PROOF, OWN, "createVerification listVerifications createCheckpoint listCheckpoints"),
    (PROOF, OWN, "listAuditEvents exportAuditEvents"),
    (PROOF, HIDDEN, "getVerification liftQuarantine"),
    (MANAGERS, OWN, "createApiKey listApiKeys"),
    (MANAGERS, HIDDEN, "getApiKey rotateApiKey revokeApiKey"),
    (OFFICE, OWN, "replaceOrganisationPolicy createReceiver listReceivers listDeliveries"),
    (OFFICE, HIDDEN, "replaceAccountPolicy approveProposal rejectProposal replaceAlertSettings retryDelivery"),
    (OFFICE, HIDDEN, "getReceiver deleteReceiver disableReceiver enableReceiver rotateReceiverSecret sendTestEvent"),
]
TABLE = {name: (roles, elsewhere) for roles, elsewhere, names in RULES for name in names.split()}
"""The roles that may, and what those of them get who belong to another tenant. Other roles get 403, there and here."""
assert len(TABLE) == sum(len(names.split()) for *_, names in RULES), "an operation is listed twice"

LOOKED_FOR_FIRST = {"rejectProposal", "archiveAccount", "unarchiveAccount"}
"""Looked for before the role is asked: whoever proposed may withdraw it, and the kind of an account decides who may
archive it."""

MAY = {name: roles for name, (roles, _) in TABLE.items()}
