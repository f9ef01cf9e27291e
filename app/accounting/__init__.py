"""Compute privacy costs without I/O: events in, integer Rényi curves and epsilons out."""
