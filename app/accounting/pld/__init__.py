"""Privacy loss distributions: certified upper bounds on delta for plans that were fixed in advance."""
