"""Query, sign and export the audit log and the decisions.

Functions that get an object raise NotFoundError if the organisation has no such object, and PermissionDeniedError if
it is outside the caller's scope.
"""
