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
    "createBudget": (TREE, HIDDEN),
    "registerRun": (RUNS, HIDDEN),
    "declareExperiment": (RUNS, HIDDEN),
    "chargeExperiment": (TRAINING, HIDDEN),
    "takeSteps": (TRAINING, HIDDEN),
    "completeRun": (RUNS, HIDDEN),
    "pauseRun": (RUNS, HIDDEN),
    "resumeRun": (RUNS, HIDDEN),
    "abortRun": (RUNS, HIDDEN),
    "openAttempt": (TRAINING, HIDDEN),
    "reserve": (TRAINING, HIDDEN),
    "commitReservation": (TRAINING, HIDDEN),
    "voidReservation": (TRAINING, HIDDEN),
    "renewReservation": (TRAINING, HIDDEN),
    "getReservation": (EVERYONE, HIDDEN),
    "verifyLedger": (PROOF, OWN),
    "planEpsilon": (EVERYONE, SAME),
    "planDelta": (EVERYONE, SAME),
    "planTrajectory": (EVERYONE, SAME),
    "planNoiseMultiplier": (EVERYONE, SAME),
    "planSteps": (EVERYONE, SAME),
    "planSamplingProbability": (EVERYONE, SAME),
    "planLaplace": (EVERYONE, SAME),
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
    "createKey": (KEYS, OWN),
    "listKeys": (KEYS, OWN),
    "getKey": (KEYS, HIDDEN),
    "rotateKey": (KEYS, HIDDEN),
    "revokeKey": (KEYS, HIDDEN),
    "listActs": (PROOF, OWN),
    "listDecisions": (EVERYONE, OWN),
    "makeCheckpoint": (PROOF, OWN),
    "listCheckpoints": (PROOF, OWN),
    "getSigningKey": (EVERYONE, SAME),
    "getRunStatement": (EVERYONE, HIDDEN),
    "getRunStatementPage": (EVERYONE, HIDDEN),
    "getPopulationStatement": (EVERYONE, HIDDEN),
    "getPopulationStatementPage": (EVERYONE, HIDDEN),
    "getLimit": (EVERYONE, HIDDEN),
    "changeLimit": (PLANNING, HIDDEN),
    "liftQuarantine": (PROOF, HIDDEN),
    "getPolicies": (EVERYONE, OWN),
    "putPolicies": (APPROVAL, OWN),
    "getPolicy": (EVERYONE, HIDDEN),
    "putPolicy": (APPROVAL, HIDDEN),
    "listProposals": (EVERYONE, OWN),
    "getProposal": (EVERYONE, HIDDEN),
    "approveProposal": (APPROVAL, HIDDEN),
    "rejectProposal": (APPROVAL, HIDDEN),
    "listAlerts": (EVERYONE, OWN),
    "getAlertSettings": (EVERYONE, HIDDEN),
    "setAlertSettings": (OFFICE, HIDDEN),
    "getForecast": (EVERYONE, HIDDEN),
    "createWebhook": (OFFICE, OWN),
    "listWebhooks": (OFFICE, OWN),
    "getWebhook": (OFFICE, HIDDEN),
    "disableWebhook": (OFFICE, HIDDEN),
    "rotateWebhookSecret": (OFFICE, HIDDEN),
    "testWebhook": (OFFICE, HIDDEN),
    "listDeliveries": (OFFICE, OWN),
    "redeliver": (OFFICE, HIDDEN),
}
"""The roles that may, and what those of them get who belong to another tenant. Other roles get 403, there and here."""

LOOKED_FOR_FIRST = {"rejectProposal"}
"""Whoever proposed may withdraw it, in whatever role: so it is looked for before the role is asked."""

MAY = {name: roles for name, (roles, _) in TABLE.items()}
