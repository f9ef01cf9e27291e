"""Pure privacy accounting: events in, integer Rényi curves and epsilons out; no clock, no storage, no web."""
