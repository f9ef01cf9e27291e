"""Who may do what: every operation, for each role, in one's own organisation and as another tenant.

Written by hand, once. An operation that is not here fails, and so does one that does not behave as it is written.
"""

EVERYONE = ["viewer", "trainer", "planner", "budget_admin", "privacy_officer", "auditor", "admin"]
TRAINING = ["trainer", "admin"]
RUNS = ["trainer", "budget_admin", "privacy_officer", "admin"]
TREE = ["budget_admin", "privacy_officer", "admin"]
KEYS = ["budget_admin", "privacy_officer", "admin"]
PLANNING = ["planner", "budget_admin", "privacy_officer", "admin"]
APPROVAL = ["privacy_officer", "admin"]
OFFICE = ["privacy_officer", "admin"]
PROOF = ["privacy_officer", "auditor", "admin"]

HIDDEN = "hidden"
"""It names what belongs to another tenant: 404, and in no way other than for what there is not."""
OWN = "own"
"""It is about the asker's own organisation: nothing of another tenant is told or touched."""
SAME = "same"
"""It is about nobody: all tenants are told the same."""

TABLE: dict[str, tuple[list[str], str]] = {
    "createPopulation": (TREE, OWN),
    "updatePopulation": (TREE, HIDDEN),
    "updateBudget": (TREE, HIDDEN),
    "updateRun": (RUNS, HIDDEN),
    "archiveAccount": (TREE, HIDDEN),
    "unarchiveAccount": (TREE, HIDDEN),
    "exportRuns": (EVERYONE, OWN),
    "exportDecisions": (EVERYONE, OWN),
    "exportAuditEvents": (PROOF, OWN),
    "exportRunHistory": (EVERYONE, HIDDEN),
    "exportAccountHistory": (EVERYONE, HIDDEN),
    "createBudget": (TREE, HIDDEN),
    "createBlocks": (TREE, HIDDEN),
    "getBlockSchedule": (EVERYONE, HIDDEN),
    "replaceBlockSchedule": (TREE, HIDDEN),
    "removeBlockSchedule": (TREE, HIDDEN),
    "createRun": (RUNS, HIDDEN),
    "createExperiment": (RUNS, HIDDEN),
    "chargeExperiment": (TRAINING, HIDDEN),
    "authorizeSteps": (TRAINING, HIDDEN),
    "completeRun": (RUNS, HIDDEN),
    "pauseRun": (RUNS, HIDDEN),
    "resumeRun": (RUNS, HIDDEN),
    "abortRun": (RUNS, HIDDEN),
    "createAttempt": (TRAINING, HIDDEN),
    "previewWait": (EVERYONE, HIDDEN),
    "getAllocation": (EVERYONE, HIDDEN),
    "replaceAllocation": (TREE, HIDDEN),
    "getQueue": (EVERYONE, HIDDEN),
    "cancelReservation": (RUNS, HIDDEN),
    "prioritizeReservation": (TREE, HIDDEN),
    "createReservation": (TRAINING, HIDDEN),
    "commitReservation": (TRAINING, HIDDEN),
    "voidReservation": (TRAINING, HIDDEN),
    "renewReservation": (TRAINING, HIDDEN),
    "getReservation": (EVERYONE, HIDDEN),
    "createVerification": (PROOF, OWN),
    "listVerifications": (PROOF, OWN),
    "getVerification": (PROOF, HIDDEN),
    "computeEpsilon": (EVERYONE, SAME),
    "computeDelta": (EVERYONE, SAME),
    "computeEpsilonTrajectory": (EVERYONE, SAME),
    "findNoiseMultiplier": (EVERYONE, SAME),
    "findMaxSteps": (EVERYONE, SAME),
    "findSamplingProbability": (EVERYONE, SAME),
    "computeLaplaceCost": (EVERYONE, SAME),
    "listPopulations": (EVERYONE, OWN),
    "getPopulation": (EVERYONE, HIDDEN),
    "listBudgets": (EVERYONE, OWN),
    "getBudget": (EVERYONE, HIDDEN),
    "listRuns": (EVERYONE, OWN),
    "listExperiments": (EVERYONE, OWN),
    "getExperiment": (EVERYONE, HIDDEN),
    "getRun": (EVERYONE, HIDDEN),
    "getRunHistory": (EVERYONE, HIDDEN),
    "getAccountHistory": (EVERYONE, HIDDEN),
    "getRunHistorySvg": (EVERYONE, HIDDEN),
    "getRunHistoryPng": (EVERYONE, HIDDEN),
    "getAccountHistorySvg": (EVERYONE, HIDDEN),
    "getAccountHistoryPng": (EVERYONE, HIDDEN),
    "createApiKey": (KEYS, OWN),
    "listApiKeys": (KEYS, OWN),
    "getApiKey": (KEYS, HIDDEN),
    "rotateApiKey": (KEYS, HIDDEN),
    "revokeApiKey": (KEYS, HIDDEN),
    "listAuditEvents": (PROOF, OWN),
    "listDecisions": (EVERYONE, OWN),
    "createCheckpoint": (PROOF, OWN),
    "listCheckpoints": (PROOF, OWN),
    "getSigningKey": (EVERYONE, SAME),
    "getRunStatement": (EVERYONE, HIDDEN),
    "getRunStatementHtml": (EVERYONE, HIDDEN),
    "getPopulationStatement": (EVERYONE, HIDDEN),
    "getPopulationStatementHtml": (EVERYONE, HIDDEN),
    "getAccountLimit": (EVERYONE, HIDDEN),
    "changeAccountLimit": (PLANNING, HIDDEN),
    "requestLimit": (RUNS, HIDDEN),
    "liftQuarantine": (PROOF, HIDDEN),
    "getOrganisationPolicy": (EVERYONE, OWN),
    "replaceOrganisationPolicy": (APPROVAL, OWN),
    "getAccountPolicy": (EVERYONE, HIDDEN),
    "replaceAccountPolicy": (APPROVAL, HIDDEN),
    "listProposals": (EVERYONE, OWN),
    "getProposal": (EVERYONE, HIDDEN),
    "approveProposal": (APPROVAL, HIDDEN),
    "rejectProposal": (APPROVAL, HIDDEN),
    "listAlerts": (EVERYONE, OWN),
    "getAlertSettings": (EVERYONE, HIDDEN),
    "replaceAlertSettings": (OFFICE, HIDDEN),
    "getForecast": (EVERYONE, HIDDEN),
    "createReceiver": (OFFICE, OWN),
    "listReceivers": (OFFICE, OWN),
    "getReceiver": (OFFICE, HIDDEN),
    "deleteReceiver": (OFFICE, HIDDEN),
    "disableReceiver": (OFFICE, HIDDEN),
    "enableReceiver": (OFFICE, HIDDEN),
    "rotateReceiverSecret": (OFFICE, HIDDEN),
    "sendTestEvent": (OFFICE, HIDDEN),
    "listDeliveries": (OFFICE, OWN),
    "retryDelivery": (OFFICE, HIDDEN),
}
"""The roles that may, and what those of them get who belong to another tenant. Other roles get 403, there and here."""

LOOKED_FOR_FIRST = {"rejectProposal", "archiveAccount", "unarchiveAccount"}
"""Looked for before the role is asked: whoever proposed may withdraw it, and the kind of an account decides who may
archive it."""

MAY = {name: roles for name, (roles, _) in TABLE.items()}
