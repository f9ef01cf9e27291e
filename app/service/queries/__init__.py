"""Read models of the pages and lists.

Functions that get an object raise NotFoundError if the organisation has none with this id, path or kind, and
PermissionDeniedError if it is outside the caller's scope. Lists have the objects within the scope only.
"""
