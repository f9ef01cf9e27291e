"""A scripted story and all that the service answered to it: a change of words is seen to change words alone."""
